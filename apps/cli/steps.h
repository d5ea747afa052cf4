// Conversions in steps (exec/step_files.h): one process plans, any number work, one commits.
#pragma once

#include <CLI/App.hpp>
#include <filesystem>
#include <string>

#include "cli/options.h"
#include "dsckpt/job.h"
#include "exec/step_work.h"

namespace dsckpt::cli {

// Identifies this program: all steps must use the same one.
std::string this_program();

// "I/N", share I of N. Throws UsageError.
StepShare parse_share(const std::string& text);

// Adds --emit-plan, --portions and --share to a tool that writes.
void add_step_options(CLI::App& app, Common& common, StepArguments& steps);

// Plans a job whose place was checked, and prints where; returns the exit code.
int plan_first(const CLI::App& app, const Common& common, const Job& job,
               const std::filesystem::path& output, const RunArguments& run, Progress& progress);
// Plans it, and does share 0 and then portions without a result; the commit is left.
void plan_and_work(const CLI::App& app, const Common& common, const Job& job,
                   const std::filesystem::path& output, const RunArguments& run,
                   Progress& progress);
// True if a tool was given a share other than the first. Then it ignores the input.
bool is_later_share(const StepArguments& steps);
// Waits for the plan of `output`, and does that share and then portions without a result. Returns
// the exit code.
int work_on_share(const CLI::App& app, const Common& common, const std::filesystem::path& output,
                  const RunArguments& run);

// Waits until something is planned at `path` or the output appears, `seconds` at most. Throws as
// find_steps().
Steps wait_for_plan(const std::filesystem::path& path, int64_t seconds, const Progress& progress);

}  // namespace dsckpt::cli
