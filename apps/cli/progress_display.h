// How far a run is, on stderr.
#pragma once

#include <memory>

#include "cli/options.h"
#include "dsckpt/run.h"

namespace dsckpt::cli {

// Shows a Progress on stderr, at most six times a second, until it is destroyed: a line with bar,
// rate and time left, no wider than the terminal, on one (or with --progress=always), JSON lines
// with --progress=json. For each SIGUSR1 there is a line in any case.
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

}  // namespace dsckpt::cli
