// Ctrl-C and other signals as a flag, and SIGUSR1, which asks for a run's progress.
#pragma once

#include <string>

#include "dsckpt/run.h"

namespace dsckpt::cli {

// SIGHUP, SIGINT and SIGTERM set `progress.cancelled` while this lives; a second signal kills. The
// process ends with the last words and kInterrupted if it does not stop within 0.15 s and has
// nothing to clean up (Writing). A listener answers SIGUSR1. Before and after it, a line says that
// nothing is written yet, or everything is.
class InterruptGuard {
 public:
  explicit InterruptGuard(Progress& progress);
  ~InterruptGuard();
  InterruptGuard(const InterruptGuard&) = delete;
  InterruptGuard& operator=(const InterruptGuard&) = delete;
};

// True if a living guard has got a signal. Any thread.
bool is_interrupted();

struct LastWords {
  std::string on_stderr;
  std::string on_stdout;
};

// Prints them and ends the process, whatever its threads do: allocates nothing and takes no lock.
[[noreturn]] void end_at_once(const LastWords& words, int status);

// Sets the words for an end by a signal; they must live as long as the process.
void set_last_words(const LastWords& words);

// While one lives there are files to remove, so nothing ends the process at once.
class Writing {
 public:
  Writing();
  ~Writing();
  Writing(const Writing&) = delete;
  Writing& operator=(const Writing&) = delete;
};

// Answers SIGUSR1 as long as it lives. One at a time.
class ProgressRequests {
 public:
  ProgressRequests();
  ~ProgressRequests();
  ProgressRequests(const ProgressRequests&) = delete;
  ProgressRequests& operator=(const ProgressRequests&) = delete;

  // True if a request has come since the last call.
  bool take();
};

}  // namespace dsckpt::cli
