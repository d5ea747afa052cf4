// How far a run is, on stderr.
#pragma once

#include <memory>

#include "cli/options.h"
#include "dsckpt/run.h"

namespace dsckpt::cli {

// Shows a Progress on stderr, at most six times a second, until it is destroyed: a line with bar,
// rate and time left, no wider than the terminal, on one (or with --progress=always), JSON lines
// with --progress=json. For each SIGUSR1 there is a line in any case. While files are opened it
// counts these, from half a second on, and that line goes away again.
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

// What `work` returns, shown meanwhile.
template <typename F>
auto while_shown(const Progress& progress, const Common& common, F&& work) {
  const ProgressDisplay display(progress, common);
  return work();
}

}  // namespace dsckpt::cli
