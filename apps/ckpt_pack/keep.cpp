// ckpt-pack keep: verifies and copies a training's checkpoints while it runs.

#include <sys/resource.h>

#include <CLI/App.hpp>
#include <memory>
#include <string>

#include "base/text.h"
#include "ckpt_pack/commands.h"
#include "ckpt_pack/keep/keeper.h"
#include "cli/far_paths.h"
#include "cli/messages.h"
#include "cli/option_facts.h"
#include "codec/frame.h"

namespace dsckpt::pack {
namespace {

// The training has priority on processors and disk.
void stand_back(const CLI::App& app, const CLI::App& sub, const cli::Common& common) {
  try {
    if (sub.get_option("--io-class")->count() == 0) cli::become_idle_at_disk();
  } catch (const IoError& error) {
    cli::note(app, common, error.what());
  }
  constexpr int kLowest = 19;
  static_cast<void>(::setpriority(PRIO_PROCESS, 0, kLowest));
}

int keep(const CLI::App& app, const CLI::App& sub, const cli::Common& common,
         const KeepArguments& args) {
  Progress progress;
  const cli::InterruptGuard guard(progress);
  if (!args.restore.empty()) return restore(app, common, args, progress);
  if (!args.into.empty()) throw UsageError("--into goes with --restore STEP");
  stand_back(app, sub, common);
  return Keeper(app, common, args, progress).run();
}

void add_policy_options(CLI::App& sub, Policy& policy) {
  cli::in_range(sub.add_option("--last", policy.last,
                               "Remove safe checkpoints from RUN, except the N newest"),
                uint64_t{0}, uint64_t{1'000'000})
      ->type_name("N");
  cli::count_from_one(
      sub.add_option("--every", policy.every,
                     "Remove safe checkpoints, except those whose step is a multiple of STEPS"))
      ->type_name("STEPS");
  sub.add_option("--best", policy.best,
                 "Remove safe checkpoints, except the one with the best METRIC in the Trainer's\n"
                 "trainer_state.json (METRIC=max or =min; default: min if it ends in loss)")
      ->type_name("METRIC");
}

}  // namespace

Command add_keep(CLI::App& app, cli::Common& common) {
  CLI::App& sub =
      *app.add_subcommand("keep", "Copy each checkpoint of a running training to another place");
  const auto args = std::make_shared<KeepArguments>();
  cli::some_path(sub.add_option("run", args->run, "The folder that the training saves to"))
      ->type_name("RUN")
      ->required();
  cli::output_path(sub.add_option("--to", args->to, "Place for the copies: a folder, or s3://"))
      ->type_name("DIR")
      ->required();
  cli::in_range(sub.add_flag_function(
                    "--pack{" + std::to_string(kDefaultPackLevel) + "}",
                    [args](int64_t level) { args->pack = static_cast<int>(level); },
                    "Pack them (see ckpt-pack pack); --pack=LEVEL is its --level"),
                kLowestPackLevel, kHighestPackLevel);
  cli::one_of(sub.add_option("--strip", args->strip, "Strip them (see ckpt-pack strip --keep)"),
              {to_string(Keep::weights), to_string(Keep::resume)})
      ->type_name("WHAT");
  add_policy_options(sub, args->policy);
  sub.add_option_function<std::string>(
         "--limit-rate",
         [args](const std::string& text) { args->limit_rate = parse_size(text, "rate"); },
         "Write at most so many bytes a second: digits and KB, MB, GB or TB")
      ->type_name("RATE");
  cli::in_range(sub.add_option("--interval", args->interval,
                               "Time between looks; a checkpoint that changed within it is not\n"
                               "finished yet"),
                0.05, 86400.0)
      ->type_name("SECONDS")
      ->capture_default_str();
  sub.add_flag("--once", args->once, "Look once, handle the finished checkpoints, and exit");
  sub.add_flag("--force", args->force,
               "Accept a new place for --to; with --restore, replace\n"
               "existing files");
  sub.add_option("--restore", args->restore,
                 "Copy back the checkpoint of that step or name, or the newest, and exit")
      ->type_name("STEP");
  cli::some_path(sub.add_option("--into", args->into, "With --restore: to this folder, not to RUN"))
      ->type_name("DIR");
  cli::add_pass_options(sub, common);
  sub.get_option("--io-class")->default_str("idle");
  return {&sub, [&app, &sub, &common, args] { return keep(app, sub, common, *args); }};
}

}  // namespace dsckpt::pack
