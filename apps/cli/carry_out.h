// The last pass of the tools that write: shows a job, or runs it and reports the result.
#pragma once

#include <CLI/App.hpp>
#include <filesystem>
#include <string>

#include "cli/cli.h"
#include "dsckpt/job.h"
#include "dsckpt/run.h"

namespace dsckpt::cli {

// The text that a dry run prints.
std::string text_of(const Job& job);

// Prints the job's notes. With `run.dry_run` the plan goes to stdout, as text or JSON. Otherwise
// runs the job into `output` while `progress` is shown. Then prints a summary: JSON on stdout, or a
// line on stderr. Returns the exit code: kCheckFailed if some parts cannot be written.
int carry_out(const CLI::App& app, const Common& common, const Job& job,
              const std::filesystem::path& output, const RunArguments& run, Progress& progress);

}  // namespace dsckpt::cli
