// ckpt-plan: the steps of a conversion after its plan (cli/steps.h).

#include <sys/resource.h>
#include <unistd.h>

#include <CLI/App.hpp>
#include <CLI/Config.hpp>
#include <CLI/Formatter.hpp>
#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/text.h"
#include "cli/cli.h"
#include "cli/far_paths.h"
#include "cli/messages.h"
#include "cli/option_facts.h"
#include "cli/steps.h"
#include "cli/tools.h"
#include "dsckpt/error.h"
#include "exec/journal.h"
#include "exec/staging_owner.h"
#include "report/report.h"

namespace dsckpt {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kLongestWait = 30 * 24 * 3600;
constexpr std::chrono::milliseconds kBetweenCounts{500};

struct StepsArguments {
  std::string path;
  std::optional<StepShare> share;
  bool only_share = false;
  int64_t wait = 0;
};

void add_path(CLI::App& sub, StepsArguments& args) {
  cli::some_path(
      sub.add_option("path", args.path, "Path that --emit-plan printed, or the path of the output"))
      ->type_name("DIR")
      ->required();
}

void add_wait(CLI::App& sub, StepsArguments& args, const std::string& text) {
  cli::in_range(sub.add_option("--wait", args.wait, text), int64_t{0}, kLongestWait)
      ->type_name("SECONDS");
}

bool is_planned(const Steps& steps) {
  return steps.folder && has_plan(*steps.folder);
}

// Returns whether everything is written, and only the end of the commit may be missing.
bool is_written(const Steps& steps) {
  try {
    return steps.folder && load_written(*steps.folder).has_value();
  } catch (const IoError&) {  // the folder is being removed
    return true;
  }
}

// Returns the process that is committing, or "".
std::string committing(const Steps& steps) {
  if (!steps.folder) return "";
  const SignedBy owner = owner_of(*steps.folder);
  return owner.state == OwnerState::alive ? owner.who : "";
}

// For a path without a plan: throws unless what was planned there is committed.
void check_committed(const Steps& steps, const std::string& path) {
  if (is_written(steps)) return;
  if (steps.folder || !steps.is_committed()) static_cast<void>(find_planned(path));
}

// Reports that nothing is left to do. Throws if nothing was ever planned.
int say_committed(const CLI::App& app, const cli::Common& common, const std::string& type,
                  const Steps& steps, const std::string& path) {
  check_committed(steps, path);
  const std::string output = steps.output.string();
  if (common.json) {
    cli::print_json(type, {{"output", output}, {"state", "committed"}});
  } else if (!common.quiet) {
    std::cerr << app.get_name() << ": " << printable(output)
              << " is complete: nothing is left to do\n";
  }
  return cli::kDone;
}

// Opens the stores of a plan. One that is gone or damaged is for the step to report.
void open_stores(const Steps& steps, const cli::Common& common) {
  std::optional<StepPlan> plan;
  try {
    if (is_planned(steps)) plan = load_plan(*steps.folder);
  } catch (const IoError&) {
  }
  if (plan) cli::open_stores_of(*plan, common);
}

int work(const CLI::App& app, const cli::Common& common, const StepsArguments& args) {
  if (args.only_share && !args.share) {
    throw UsageError("--only-share goes with --share I/N").with_hint("which share is meant?");
  }
  Progress progress;
  const cli::InterruptGuard guard(progress);
  const Steps steps = cli::wait_for_plan(args.path, args.wait, progress);
  if (!is_planned(steps)) {
    if (args.wait > 0 && !steps.is_committed()) {
      throw IoError(
          {.file = args.path},
          "no process planned it within " + counted(static_cast<uint64_t>(args.wait), "second"), 0)
          .with_hint("look whether the tool with --emit-plan has run, and sees the same folder");
    }
    return say_committed(app, common, "work", steps, args.path);
  }
  open_stores(steps, common);
  const auto begin = std::chrono::steady_clock::now();
  const StepsDone done = [&] {
    const cli::ProgressDisplay display(progress, common);
    const cli::Writing writing;
    return work_on_steps(*steps.folder, cli::this_program(),
                         {.threads = common.threads,
                          .share = args.share,
                          .only_share = args.only_share,
                          .answer = cli::answering_tasks()},
                         progress);
  }();
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begin;
  const std::string output = steps.output.string();
  if (common.json) {
    cli::print_json("work", {{"output", output},
                             {"folder", steps.folder->path().string()},
                             {"state", done.is_taken_over ? "committed" : "planned"},
                             {"portions_done", done.portions},
                             {"bytes_done", done.bytes},
                             {"portions_left", done.left},
                             {"seconds", seconds.count()}});
  } else if (!common.quiet) {
    std::cerr << app.get_name() << ": " << counted(done.portions, "portion") << ", "
              << human_bytes(done.bytes) << ", " << human_seconds(seconds.count()) << ", "
              << (done.is_taken_over ? "and another process commits the rest"
                  : done.left == 0   ? "and all have a result"
                                     : "and " + std::to_string(done.left) + " have no result yet")
              << "\n";
    if (!done.is_taken_over && done.left == 0) {
      std::cerr << app.get_name() << ": next: dsckpt commit " << printable(shell_word(output))
                << "\n";
    }
  }
  return cli::kDone;
}

// Waits until all portions have a result, one of them fails, or the time is over.
void wait_for_results(const Steps& steps, int64_t seconds, const cli::Common& common) {
  Progress progress;
  const cli::InterruptGuard guard(progress);
  const cli::ProgressDisplay display(progress, common);
  const StepPlan plan = load_plan(*steps.folder);
  for (const StepPlan::Entry& entry : plan.portions) progress.bytes_total += entry.bytes;
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(seconds);
  while (std::chrono::steady_clock::now() < end && has_plan(*steps.folder)) {
    if (progress.cancelled) throw InterruptedError();
    uint64_t done = 0;
    size_t count = 0;
    for (size_t portion = 0; portion < plan.portions.size(); ++portion) {
      if (!has_result(*steps.folder, portion)) continue;
      done += plan.portions[portion].bytes;
      ++count;
    }
    progress.bytes_done = done;
    if (count == plan.portions.size()) return;
    for (const StepFailure& failure : load_failures(*steps.folder)) {
      if (!failure.may_be_tried_again()) return;
    }
    std::this_thread::sleep_for(kBetweenCounts);
  }
}

// Lifts the limit of --max-memory: the program that this process becomes sets it again.
void lift_memory_limit() {
  rlimit limit{};
  ::getrlimit(RLIMIT_DATA, &limit);
  limit.rlim_cur = limit.rlim_max;
  ::setrlimit(RLIMIT_DATA, &limit);
}

// Replaces this process by the tool that planned.
[[noreturn]] void become(const cli::Common& common, const PlannedBy& by) {
  if (::chdir(by.folder.c_str()) != 0) {
    throw IoError({.file = by.folder}, "cannot enter the folder in which it was planned", errno)
        .with_hint("commit on a machine that has this folder");
  }
  std::vector<std::string> words = by.words;
  std::vector<std::string> more;
  if (common.json) more.emplace_back("--json");
  if (common.quiet) more.emplace_back("--quiet");
  if (common.threads != 0) more.push_back("--threads=" + std::to_string(common.threads));
  if (common.max_memory != 0) {
    more.push_back("--max-memory=" + std::to_string(common.max_memory / 1000) + "KB");
    lift_memory_limit();
  }
  switch (common.progress) {
    case cli::ProgressMode::automatic:
      break;
    case cli::ProgressMode::always:
      more.emplace_back("--progress=always");
      break;
    case cli::ProgressMode::never:
      more.emplace_back("--progress=never");
      break;
    case cli::ProgressMode::json:
      more.emplace_back("--progress=json");
      break;
  }
  words.insert(std::find(words.begin(), words.end(), "--"), more.begin(), more.end());
  std::vector<char*> pointers;
  for (std::string& word : words) pointers.push_back(word.data());
  pointers.push_back(nullptr);
  ::execv("/proc/self/exe", pointers.data());
  throw IoError({.file = "/proc/self/exe"}, "cannot be started", errno);
}

int commit(const CLI::App& app, const cli::Common& common, const StepsArguments& args) {
  const Steps steps = find_steps(args.path);
  if (!is_planned(steps)) {
    if (is_written(steps) && committing(steps).empty()) {
      // All files have their final names: a commit was killed while it removed leftovers.
      const StagingOwner owner(*steps.folder);
      if (const int failed = remove_staging_folder(*steps.place, *steps.folder)) {
        throw IoError({.file = steps.folder->path().string()}, "cannot be removed", failed);
      }
    } else if (steps.left_over) {
      // The folder is removed if it is empty, and kept if another process has just begun to use it.
      static_cast<void>(steps.place->remove_folder(steps.left_over->path().filename()));
    }
    return say_committed(app, common, "committed", steps, args.path);
  }
  StepPlan plan;
  try {
    plan = load_plan(*steps.folder);
  } catch (const IoError&) {
    if (has_plan(*steps.folder)) throw;
    return commit(app, common, args);  // another process has committed, and removes the plan
  }
  if (plan.by.program != cli::this_program()) {
    throw UsageError(steps.folder->path().string() + ": was planned by " + plan.by.program +
                     ", and this is " + cli::this_program())
        .with_hint("all steps need the same program");
  }
  if (args.wait > 0) wait_for_results(steps, args.wait, common);
  cli::flush_stdout();
  become(common, plan.by);
}

nlohmann::json failure_json(const StepFailure& failure) {
  nlohmann::json data{{"portion", failure.portion},
                      {"host", failure.host},
                      {"may_be_tried_again", failure.may_be_tried_again()}};
  try {
    failure.raise();
  } catch (const Error& error) {
    data["error"] = error_json(error);
  } catch (const std::exception& error) {
    data["error"] = {{"message", error.what()}};
  }
  return data;
}

int show(const CLI::App&, const cli::Common& common, const StepsArguments& args) {
  const Steps steps = find_steps(args.path);
  if (!steps.folder) check_committed(steps, args.path);
  nlohmann::json data{{"output", steps.output.string()}};
  const std::string who = committing(steps);
  std::string state = "committed";
  if (steps.folder) {
    data["folder"] = steps.folder->path().string();
    if (!who.empty()) data["committing"] = who;
    state = is_written(steps) ? "written" : "begun";
  }
  nlohmann::json failures = nlohmann::json::array();
  std::string counts;
  if (is_planned(steps)) {
    const StepPlan plan = load_plan(*steps.folder);
    uint64_t bytes = 0, bytes_done = 0;
    size_t done = 0;
    for (size_t portion = 0; portion < plan.portions.size(); ++portion) {
      bytes += plan.portions[portion].bytes;
      if (!has_result(*steps.folder, portion)) continue;
      bytes_done += plan.portions[portion].bytes;
      ++done;
    }
    if (state == "begun") state = done == plan.portions.size() ? "complete" : "planned";
    data.update(
        {{"portions", plan.portions.size()},
         {"portions_done", done},
         {"bytes", bytes},
         {"bytes_done", bytes_done},
         {"planned_by",
          {{"program", plan.by.program}, {"words", plan.by.words}, {"folder", plan.by.folder}}}});
    counts = std::to_string(done) + " of " + counted(plan.portions.size(), "portion") + ", " +
             human_bytes(bytes_done) + " of " + human_bytes(bytes);
    for (const StepFailure& failure : load_failures(*steps.folder)) {
      failures.push_back(failure_json(failure));
    }
  }
  data["state"] = state;
  data["failures"] = failures;
  if (common.json) {
    cli::print_json("steps", std::move(data));
    return cli::kDone;
  }
  std::cout << printable(steps.output.string()) << ": " << state
            << (counts.empty() ? "" : ": " + counts) << "\n";
  if (!who.empty()) std::cout << printable(who) << " plans or commits\n";
  for (const nlohmann::json& failure : failures) {
    std::cout << "failed: " << printable(failure["error"]["message"].get<std::string>()) << "\n";
  }
  return cli::kDone;
}

int abandon(const CLI::App& app, const cli::Common& common, const StepsArguments& args) {
  const Steps steps = find_steps(args.path);
  std::string folder;
  if (const std::optional<Folder>& found = steps.folder ? steps.folder : steps.left_over) {
    folder = found->path().string();
    open_stores(steps, common);
    abandon_steps(steps);
  } else {
    check_committed(steps, args.path);
  }
  if (common.json) {
    cli::print_json("abandoned", {{"output", steps.output.string()}, {"removed", folder}});
  } else if (!common.quiet) {
    std::cerr << app.get_name() << ": "
              << (folder.empty() ? printable(steps.output.string()) +
                                       " is complete: nothing is left to be removed"
                                 : "removed " + printable(folder))
              << "\n";
  }
  return cli::kDone;
}

using Does = int(const CLI::App&, const cli::Common&, const StepsArguments&);

cli::Command add(CLI::App& app, cli::Common& common, const std::string& name,
                 const std::string& description, Does* does,
                 void (*add_options)(CLI::App&, cli::Common&, StepsArguments&)) {
  CLI::App& sub = *app.add_subcommand(name, description);
  const auto args = std::make_shared<StepsArguments>();
  add_path(sub, *args);
  if (add_options != nullptr) add_options(sub, common, *args);
  return {&sub, [&app, &common, args, does] { return does(app, common, *args); }};
}

void add_work_options(CLI::App& sub, cli::Common& common, StepsArguments& args) {
  sub.add_option_function<std::string>(
         "--share", [&](const std::string& text) { args.share = cli::parse_share(text); },
         "Begin with share I of N, then work on portions that the others left; 0/4 is the\n"
         "first (default: all portions without a result, in any order)")
      ->type_name("I/N");
  sub.add_flag("--only-share", args.only_share,
               "With --share: leave the portions of the others alone");
  add_wait(sub, args, "Wait so long for the plan (default: 0)");
  cli::add_pass_options(sub, common);
}

void add_commit_options(CLI::App& sub, cli::Common& common, StepsArguments& args) {
  add_wait(
      sub, args,
      "Wait this long for others' results before working on portions without one (default: 0)");
  cli::add_pass_options(sub, common);
}

int run(CLI::App& app, int argc, char** argv) {
  cli::Common common;
  cli::add_common(app, common, false);
  const std::vector<cli::Command> commands{
      add(app, common, "work", "Work on planned portions that have no result yet", work,
          add_work_options),
      add(app, common, "commit", "Finish the remaining portions, and give the output its name",
          commit, add_commit_options),
      add(app, common, "steps", "How far it is", show, nullptr),
      add(app, common, "abandon", "Remove the plan and its results", abandon, nullptr)};
  for (const cli::Command& command : commands) cli::add_common(*command.app, common, false);
  app.require_subcommand(1);
  cli::set_examples(
      app, {.commands = {"zero-to-fp32 checkpoint-500 weights --emit-plan",
                         "dsckpt work weights --share 2/8", "dsckpt steps weights",
                         "dsckpt commit weights --wait 3600", "dsckpt abandon weights"},
            .remarks = {"Any engine may run them: arrays of Slurm, Jobs of Kubernetes, Ray, Dask.",
                        "Each may be called again at any time."}});
  return cli::run(app, common, argc, argv, [&] {
    return std::find_if(commands.begin(), commands.end(),
                        [](const cli::Command& command) { return command.app->parsed(); })
        ->run();
  });
}

}  // namespace

constexpr cli::Tool kCkptPlan{"ckpt-plan",
                              "The steps of a conversion that --emit-plan has planned.", run, true};

}  // namespace dsckpt
