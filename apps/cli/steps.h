// Conversions in steps (exec/step_files.h): one process plans, any number work, one commits. The
// same for reports (exec/step_readers.h).
#pragma once

#include <CLI/App.hpp>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>

#include "cli/options.h"
#include "dsckpt/job.h"
#include "exec/step_work.h"

namespace dsckpt::cli {

// Identifies this program: all steps must use the same one.
std::string this_program();
// The command of this process, as `dsckpt commit` calls it: with `commit`, a hidden option.
PlannedBy planned_by(const CLI::App& app, const std::string& commit = "--commit-planned");
// How this program does tasks that only read.
AnswerTask answering_tasks();

// "I/N", share I of N. Throws UsageError.
StepShare parse_share(const std::string& text);

// Adds --emit-plan, --portions, --plan-in and --share to a tool that writes.
void add_step_options(CLI::App& app, Common& common, StepArguments& steps);

// Plans a job whose place was checked, and prints where; returns the exit code.
int plan_first(const CLI::App& app, const Common& common, const Job& job,
               const std::filesystem::path& output, const RunArguments& run, Progress& progress);
// Plans it, and does share 0 and then portions without a result; the commit is left.
void plan_and_work(const CLI::App& app, const Common& common, const Job& job,
                   const std::filesystem::path& output, const RunArguments& run,
                   Progress& progress);
// Does portions without a result of the plan at that path, first those of the share.
void work_on_planned(const Common& common, const std::filesystem::path& planned,
                     const StepShare& share, Progress& progress);
// For Common::is_later_share: waits for the plan of `output`, and does that share and then portions
// without a result. Returns the exit code.
int work_on_share(const CLI::App& app, const Common& common, const std::filesystem::path& output,
                  const RunArguments& run);

// The step of a command that only reads.
struct ReadingSteps {
  std::string folder = {};              // that is planned in, or where the plan is
  uint64_t portions = 0;                // about so many; 0: as many as suit
  std::optional<StepShare> share = {};  // what one of several processes does, all steps of them
  bool commits = false;                 // only the last

  bool any() const { return !folder.empty() || share; }
};
// Adds --emit-plan DIR, --portions and --share.
void add_step_options(CLI::App& sub, Common& common, ReadingSteps& steps);
// Does that step. `body` reads by common.readers, as common.step says, and returns the exit code.
int read_in_steps(const CLI::App& app, Common& common, const ReadingSteps& steps,
                  const std::function<int()>& body);

// Waits until something is planned at `path` or the output appears, `seconds` at most. Throws as
// find_steps().
Steps wait_for_plan(const std::filesystem::path& path, int64_t seconds, const Progress& progress);

}  // namespace dsckpt::cli
