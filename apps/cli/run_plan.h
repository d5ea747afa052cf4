// The last step of the tools that write: show a plan, or run it and say what came of it.
#pragma once

#include <CLI/App.hpp>
#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "checkpoint/checkpoint.h"
#include "cli/cli.h"
#include "exec/executor.h"

namespace dsckpt::cli {

struct PlannedRun {
  const Checkpoint* source;              // nullptr if the input was not opened as a checkpoint
  std::string output;                    // folder
  std::string what;                      // "12 tensors in 1 file", for the summary
  std::function<nlohmann::json()> json;  // of the plan
  std::function<std::string()> text;     // of the plan
  std::function<ExecStats()> run;
  std::function<std::vector<std::string>()> notes_after = {};  // on the output, after the run
  // What cannot be written, a line each, for stdout; then the exit code is kCheckFailed.
  std::vector<std::string> left_out = {};
};

// With `dry_run` the plan goes to stdout, as text or JSON. Otherwise it is run, while `progress` is
// shown, and then there is a summary: JSON on stdout, or a line on stderr. Returns the exit code.
int show_or_run(const CLI::App& app, const Common& common, bool dry_run, const Progress& progress,
                const PlannedRun& planned);

}  // namespace dsckpt::cli
