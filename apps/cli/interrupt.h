// Ctrl-C and its like, as a flag; and SIGUSR1, which asks how far a run is.
#pragma once

#include <string>

#include "dsckpt/run.h"

namespace dsckpt::cli {

// SIGHUP, SIGINT and SIGTERM set `progress.cancelled` while this lives; a second signal kills.
// What does not stop by itself within 0.15 s, and has nothing to clean up (Writing), is ended with
// the last words and kInterrupted. SIGUSR1 is answered by whoever listens, and before and after by
// a line that says so.
class InterruptGuard {
 public:
  explicit InterruptGuard(Progress& progress);
  ~InterruptGuard();
  InterruptGuard(const InterruptGuard&) = delete;
  InterruptGuard& operator=(const InterruptGuard&) = delete;
};

// Whether a guard that lives has heard a signal. Any thread.
bool is_interrupted();

struct LastWords {
  std::string on_stderr;
  std::string on_stdout;
};

// Says them and ends the process, whatever its threads do: allocates nothing and takes no lock.
[[noreturn]] void end_at_once(const LastWords& words, int status);

// What an end by a signal says; they must live as long as the process.
void set_last_words(const LastWords& words);

// While one lives there are files that must be removed: nothing ends the process at once.
class Writing {
 public:
  Writing();
  ~Writing();
  Writing(const Writing&) = delete;
  Writing& operator=(const Writing&) = delete;
};

// Whoever answers SIGUSR1, as long as it lives. One at a time.
class ProgressRequests {
 public:
  ProgressRequests();
  ~ProgressRequests();
  ProgressRequests(const ProgressRequests&) = delete;
  ProgressRequests& operator=(const ProgressRequests&) = delete;

  // Whether somebody has asked since the last call.
  bool take();
};

}  // namespace dsckpt::cli
