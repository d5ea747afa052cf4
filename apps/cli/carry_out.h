// The last pass of the tools that write: show a job, or run it and say what came of it.
#pragma once

#include <CLI/App.hpp>
#include <filesystem>
#include <string>

#include "cli/cli.h"
#include "dsckpt/job.h"
#include "dsckpt/run.h"

namespace dsckpt::cli {

// What a dry run prints, as text.
std::string text_of(const Job& job);

// Prints the job's notes. With `run.dry_run` the plan goes to stdout, as text or JSON. Otherwise
// the job is run into `output`, while `progress` is shown, and then there is a summary: JSON on
// stdout, or a line on stderr. Returns the exit code: kCheckFailed if something cannot be written.
int carry_out(const CLI::App& app, const Common& common, const Job& job,
              const std::filesystem::path& output, const RunArguments& run, Progress& progress);

}  // namespace dsckpt::cli
