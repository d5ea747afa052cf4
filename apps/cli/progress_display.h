// Shows the progress of a run on stderr.
#pragma once

#include <memory>

#include "cli/options.h"
#include "dsckpt/run.h"

namespace dsckpt::cli {

// Shows a Progress on stderr, at most six times a second, until it is destroyed. On a terminal (or
// with --progress=always) it is a line with bar, rate and time left, no wider than the terminal.
// With --progress=json it is JSON lines. Each SIGUSR1 prints a line in any case. While files are
// opened it counts them, from half a second on, and erases that line at the end.
class ProgressDisplay {
 public:
  ProgressDisplay(const Progress& progress, const Common& common);
  ~ProgressDisplay();
  ProgressDisplay(const ProgressDisplay&) = delete;
  ProgressDisplay& operator=(const ProgressDisplay&) = delete;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// Calls `work` while the progress is shown; returns its result.
template <typename F>
auto while_shown(const Progress& progress, const Common& common, F&& work) {
  const ProgressDisplay display(progress, common);
  return work();
}

}  // namespace dsckpt::cli
