// Job: reads files while the user may press keys.
#pragma once

#include <atomic>
#include <exception>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "dsckpt/run.h"

namespace dsckpt::inspect {

// Lines for a screen of so many columns.
using Lines = std::function<std::vector<std::string>(size_t columns)>;

// Runs a function in a thread of its own.
class PageJob {
 public:
  // `work` stops with InterruptedError when `progress` is cancelled.
  explicit PageJob(std::function<Lines(Progress& progress)> work);
  // Cancels, and waits.
  ~PageJob();
  PageJob(const PageJob&) = delete;
  PageJob& operator=(const PageJob&) = delete;

  void cancel() { progress_.cancelled = true; }
  bool cancelled() const { return progress_.cancelled; }
  // True if it is done; waits for so long at most.
  bool done_within(int milliseconds) const;
  bool done() const { return done_; }
  // The progress of reading: "12.5 MB of 400 MB"; "" if unknown.
  std::string progress_text() const;
  // The result, once it is done. An error becomes its message as lines.
  Lines take();

 private:
  Progress progress_;
  std::atomic<bool> done_{false};
  Lines lines_;
  std::thread thread_;
};

}  // namespace dsckpt::inspect
