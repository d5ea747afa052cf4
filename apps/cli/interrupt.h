// Ctrl-C and its like, as a flag.
#pragma once

#include "dsckpt/run.h"

namespace dsckpt::cli {

// SIGHUP, SIGINT and SIGTERM set `progress.cancelled` while this lives; a second signal kills.
class InterruptGuard {
 public:
  explicit InterruptGuard(Progress& progress);
  ~InterruptGuard();
  InterruptGuard(const InterruptGuard&) = delete;
  InterruptGuard& operator=(const InterruptGuard&) = delete;
};

}  // namespace dsckpt::cli
