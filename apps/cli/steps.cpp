#include "cli/steps.h"

#include <algorithm>
#include <charconv>
#include <chrono>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>
#include <set>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "base/text.h"
#include "cli/cli.h"
#include "cli/interrupt.h"
#include "cli/messages.h"
#include "cli/option_facts.h"
#include "cli/progress_display.h"
#include "cli/version.h"
#include "dsckpt/error.h"
#include "exec/answering.h"
#include "exec/step_readers.h"
#include "inspect/ask.h"
#include "io/far_files.h"
#include "job/job_impl.h"
#include "job/run_job.h"

namespace dsckpt::cli {
namespace {

namespace fs = std::filesystem;
using std::chrono::milliseconds;

constexpr size_t kMostShares = 65536;
constexpr uint64_t kMostPortions = 10'000'000;
constexpr milliseconds kBetweenLooks{200};
// Time for share 0 to plan, without an output, and with one, which may be its own.
constexpr int64_t kLongestPlanning = 600;
constexpr int64_t kLongestWithOutput = 20;

// Returns whether an option is for the planning process, and does not affect the plan.
bool is_of_the_process(const CLI::Option& option) {
  static const std::set<std::string> kNames{"emit-plan", "portions", "share", "threads",
                                            "io-class",  "progress", "group", "rank-timeout",
                                            "ranks",     "disk-rate"};
  if (option.get_group() == kCommonGroup) return true;
  const std::vector<std::string>& names = option.get_lnames();
  return std::any_of(names.begin(), names.end(),
                     [&](const std::string& name) { return kNames.contains(name); });
}

// Returns the parsed words: options by their long names, then positional arguments.
std::vector<std::string> words_of(const CLI::App& app, const std::string& commit) {
  std::vector<std::string> words{app.get_name()};
  std::vector<std::string> paths;
  const CLI::App* command = &app;
  for (const CLI::App* sub : app.get_subcommands()) {
    words.push_back(sub->get_name());
    command = sub;
  }
  for (const CLI::Option* option : command->get_options()) {
    if (option->count() == 0 || is_of_the_process(*option)) continue;
    for (const std::string& result : option->results()) {
      // Parsing has made a URL into a folder of this process.
      const std::string value = shown_path(result);
      if (option->get_positional()) {
        paths.push_back(value);
      } else if (option->get_expected_max() == 0 && value == "true") {
        words.push_back("--" + option->get_lnames().front());
      } else {
        words.push_back("--" + option->get_lnames().front() + "=" + value);
      }
    }
  }
  words.push_back(commit);
  words.emplace_back("--");
  words.insert(words.end(), paths.begin(), paths.end());
  return words;
}

RunOptions options_of(const Common& common, const RunArguments& run) {
  RunOptions options = run.options;
  if (options.threads == 0) options.threads = common.threads;
  return options;
}

Planned plan_job(const CLI::App& app, const Common& common, const Job& job, const fs::path& output,
                 const RunArguments& run, Progress& progress) {
  const ProgressDisplay display(progress, common);
  const Writing writing;
  if (progress.cancelled) throw InterruptedError();
  return plan_steps(job, output, options_of(common, run), planned_by(app),
                    {run.steps.portions, run.steps.planned_in}, progress);
}

StepsDone work_here(const Common& common, const Folder& folder, const StepShare& share,
                    Progress& progress) {
  progress.bytes_done = 0;
  progress.bytes_total = 0;
  const ProgressDisplay display(progress, common);
  const Writing writing;
  return work_on_steps(folder, this_program(),
                       {.threads = common.threads, .share = share, .answer = answering_tasks()},
                       progress);
}

// Prints the folder of the plan alone on stdout, or `data` with it.
int say_planned(const CLI::App& app, const Common& common, const Planned& planned,
                nlohmann::json data) {
  const std::string folder = planned.folder.string();
  if (common.json) {
    data["steps"] = {{"folder", folder},
                     {"portions", planned.portions},
                     {"bytes", planned.bytes},
                     {"was_planned", planned.was_there}};
    print_json("plan", std::move(data));
    return kDone;
  }
  std::cout << folder << "\n";
  if (common.quiet) return kDone;
  std::cerr << app.get_name() << ": " << (planned.was_there ? "was planned before: " : "planned: ")
            << counted(planned.portions, "portion") << ", " << human_bytes(planned.bytes) << "\n"
            << app.get_name() << ": next: dsckpt work " << printable(shell_word(folder)) << "\n";
  return kDone;
}

void add_portions(CLI::App& app, uint64_t& portions) {
  in_range(app.add_option("--portions", portions,
                          "With --emit-plan: cut it into about N portions (default: automatic)"),
           uint64_t{1}, kMostPortions)
      ->type_name("N");
}

void add_share(CLI::App& app, Common& common, std::optional<StepShare>& share,
               const std::string& text) {
  app.add_option_function<std::string>(
         "--share",
         [&](const std::string& given) {
           share = parse_share(given);
           common.meeting.alone = true;
           common.is_later_share = share->number > 0;
         },
         text)
      ->type_name("I/N");
}

int work_on_share(const CLI::App& app, const Common& common, const fs::path& output,
                  const StepShare& share) {
  Progress progress;
  const InterruptGuard guard(progress);
  const bool was_there = find_steps(output).is_committed();
  const Steps steps = while_shown(progress, common, [&] {
    return wait_for_plan(output, was_there ? kLongestWithOutput : kLongestPlanning, progress);
  });
  const std::string number = std::to_string(share.number);
  if (!steps.folder || !has_plan(*steps.folder)) {
    if (steps.is_committed()) {
      note(app, common,
           output.string() + " is complete: nothing is left for share " + number + " to do");
      return kDone;
    }
    throw IoError({.file = output.string()},
                  "no process planned it within " +
                      counted(static_cast<uint64_t>(kLongestPlanning), "second"),
                  0)
        .with_hint("share 0 plans: look whether it runs, and sees the same folder");
  }
  const StepsDone done = work_here(common, *steps.folder, share, progress);
  if (common.json) {
    print_json("work", {{"output", output.string()},
                        {"folder", steps.folder->path().string()},
                        {"portions_done", done.portions},
                        {"bytes_done", done.bytes},
                        {"portions_left", done.left}});
  } else if (!common.quiet) {
    std::cerr << app.get_name() << ": share " << number << ": " << counted(done.portions, "portion")
              << ", " << human_bytes(done.bytes) << "\n";
  }
  return kDone;
}

// Does portions without a result, and returns the plan's folder. The pass that needs a file reports
// that it cannot be read.
Folder finish_reading(const Common& common, const std::string& path) {
  const Steps steps = find_planned(path);
  Progress progress;
  const InterruptGuard guard(progress);
  try {
    work_here(common, *steps.folder, {}, progress);
  } catch (const IoError&) {
  }
  return *steps.folder;
}

}  // namespace

PlannedBy planned_by(const CLI::App& app, const std::string& commit) {
  return {.program = this_program(),
          .words = words_of(app, commit),
          .folder = fs::current_path().string()};
}

AnswerTask answering_tasks() {
  return answering(answer_question);
}

std::string this_program() {
  return std::string("dsckpt ") + kVersion + " (" + kCommit + ")";
}

StepShare parse_share(const std::string& text) {
  StepShare share;
  const char* const end = text.data() + text.size();
  const auto [slash, bad] = std::from_chars(text.data(), end, share.number);
  if (bad == std::errc() && slash != end && *slash == '/') {
    const auto [last, failed] = std::from_chars(slash + 1, end, share.of);
    if (failed == std::errc() && last == end && share.number < share.of &&
        share.of <= kMostShares) {
      return share;
    }
  }
  throw UsageError("--share " + text + ": is not I/N, with I from 0 to N - 1, and N up to " +
                   std::to_string(kMostShares))
      .with_hint("of four processes they are 0/4, 1/4, 2/4 and 3/4");
}

void add_step_options(CLI::App& app, Common& common, StepArguments& steps) {
  app.add_flag_callback(
      "--emit-plan",
      [&] {
        steps.plans = true;
        common.meeting.alone = true;
      },
      "Only plan: any number of 'dsckpt work DIR' do it, and 'dsckpt commit DIR' ends it; prints\n"
      "DIR, beside the output or in it");
  add_portions(app, steps.portions);
  some_path(app.add_option(
                "--plan-in", steps.planned_in,
                "With --emit-plan, --share or --resume, and an output in an object store: plan in\n"
                "this new folder, which all steps see"))
      ->type_name("DIR");
  add_share(app, common, steps.share,
            "Be one of N processes that any engine has started with this command: 0 plans and\n"
            "commits, the others wait for the plan and work");
  // `dsckpt commit` passes this to the command that planned.
  app.add_flag_callback(
         "--commit-planned",
         [&] {
           steps.commits = true;
           common.meeting.alone = true;
         },
         "Commit what was planned")
      ->group("");
}

int plan_first(const CLI::App& app, const Common& common, const Job& job, const fs::path& output,
               const RunArguments& run, Progress& progress) {
  const Planned planned = plan_job(app, common, job, output, run, progress);
  nlohmann::json data = common.json ? job_json(*job) : nlohmann::json();
  data["output"] = shown_path(output);
  return say_planned(app, common, planned, std::move(data));
}

void plan_and_work(const CLI::App& app, const Common& common, const Job& job,
                   const fs::path& output, const RunArguments& run, Progress& progress) {
  const Planned planned = plan_job(app, common, job, output, run, progress);
  work_on_planned(common, planned.folder, *run.steps.share, progress);
}

void work_on_planned(const Common& common, const fs::path& planned, const StepShare& share,
                     Progress& progress) {
  const Steps steps = find_steps(planned);
  if (steps.folder) work_here(common, *steps.folder, share, progress);
}

Steps wait_for_plan(const fs::path& path, int64_t seconds, const Progress& progress) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(seconds);
  const bool was_there = find_steps(path).is_committed();
  for (;;) {
    if (progress.cancelled) throw InterruptedError();
    Steps steps = find_steps(path);
    const bool is_planned = steps.folder && has_plan(*steps.folder);
    // Others may have planned and committed between two looks.
    const bool is_committed = !was_there && !steps.folder && steps.is_committed();
    if (is_planned || is_committed || std::chrono::steady_clock::now() >= end) return steps;
    std::this_thread::sleep_for(kBetweenLooks);
  }
}

int work_on_share(const CLI::App& app, const Common& common, const fs::path& output,
                  const RunArguments& run) {
  const std::string& planned_in = run.steps.planned_in;
  if (planned_in.empty() && is_far(output)) {
    throw UsageError(shown_path(output) + ": its plan needs a folder that all steps see")
        .with_hint("--plan-in DIR names a new one");
  }
  return work_on_share(app, common, planned_in.empty() ? output : fs::path(planned_in),
                       *run.steps.share);
}

void add_step_options(CLI::App& sub, Common& common, ReadingSteps& steps) {
  const auto set_folder = [&](const std::string& folder) {
    steps.folder = fs::absolute(folder).string();
    common.meeting.alone = true;
  };
  some_path(sub.add_option_function<std::string>(
                "--emit-plan", set_folder,
                "Only plan, in a new folder DIR: any number of 'dsckpt work DIR' do it, and\n"
                "'dsckpt commit DIR' prints the report"))
      ->type_name("DIR");
  add_portions(sub, steps.portions);
  add_share(sub, common, steps.share,
            "With --emit-plan: be one of N processes that any engine has started with this\n"
            "command: 0 plans and prints the report, the others wait for the plan and work");
  // `dsckpt commit` passes this to the command that planned.
  sub.add_option_function<std::string>(
         "--commit-planned",
         [&steps, set_folder](const std::string& folder) {
           set_folder(folder);
           steps.commits = true;
         },
         "Report what was planned there")
      ->group("");
}

int read_in_steps(const CLI::App& app, Common& common, const ReadingSteps& steps,
                  const std::function<int()>& body) {
  if (steps.folder.empty()) {
    throw UsageError("--share goes with --emit-plan DIR")
        .with_hint("all processes of the command get the same DIR, where one plans for all");
  }
  if (common.is_later_share) {
    return work_on_share(app, common, steps.folder, *steps.share);
  }
  if (!steps.commits) {
    const auto planner = std::make_shared<PassPlanner>();
    common.readers = planner;
    common.step = ReadingStep::plan;
    if (const int status = body(); status != kDone) return status;
    const Planned planned = planner->save(
        steps.folder, planned_by(app, "--commit-planned=" + steps.folder), steps.portions);
    if (!steps.share) {
      return say_planned(app, common, planned, {{"output", steps.folder}});
    }
  }
  common.readers = std::make_shared<PassAnswers>(finish_reading(common, steps.folder));
  common.step = ReadingStep::commit;
  return body();
}

}  // namespace dsckpt::cli
