// Conversions in steps (exec/step_files.h): one process plans, any number work, one commits.
#pragma once

#include <CLI/App.hpp>
#include <filesystem>
#include <string>

#include "cli/options.h"
#include "dsckpt/job.h"
#include "exec/step_work.h"

namespace dsckpt::cli {

// Which program this is: all steps take the same one.
std::string this_program();

// "I/N", share I of N. Throws UsageError.
StepShare parse_share(const std::string& text);

// Adds --emit-plan, --portions and --share to a tool that writes.
void add_step_options(CLI::App& app, Common& common, StepArguments& steps);

// Of a job whose place was checked: plans it, and says where; returns the exit code.
int plan_first(const CLI::App& app, const Common& common, const Job& job,
               const std::filesystem::path& output, const RunArguments& run, Progress& progress);
// Plans it, and does share 0 of it and what has no result then; the commit is left.
void plan_and_work(const CLI::App& app, const Common& common, const Job& job,
                   const std::filesystem::path& output, const RunArguments& run,
                   Progress& progress);
// Of a tool that was given a share: whether that is another one than the first. Then the input is
// of no concern.
bool is_later_share(const StepArguments& steps);
// Waits for the plan of `output`, and does that share and what has no result then. Returns the exit
// code.
int work_on_share(const CLI::App& app, const Common& common, const std::filesystem::path& output,
                  const RunArguments& run);

// Looks at `path` until something is planned there or the output comes to be there, `seconds` at
// most. Throws what find_steps() throws.
Steps wait_for_plan(const std::filesystem::path& path, int64_t seconds, const Progress& progress);

}  // namespace dsckpt::cli
