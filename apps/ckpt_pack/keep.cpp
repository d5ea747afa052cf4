// ckpt-pack keep: looks after a training's checkpoints while it runs.

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

// The training goes first, whoever shares the processors and the disk with it.
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
                               "Once they are safe, remove checkpoints from RUN but the N newest"),
                uint64_t{0}, uint64_t{1'000'000})
      ->type_name("N");
  cli::count_from_one(
      sub.add_option("--every", policy.every, "The same, but those of each so many steps stay"))
      ->type_name("STEPS");
  sub.add_option("--best", policy.best,
                 "The same, but the one of the best METRIC in the Trainer's trainer_state.json\n"
                 "stays (METRIC=max or =min; default: what ends in loss is to be small)")
      ->type_name("METRIC");
}

}  // namespace

Command add_keep(CLI::App& app, cli::Common& common) {
  CLI::App& sub = *app.add_subcommand(
      "keep", "Bring each checkpoint of a training elsewhere, beside it, while it runs");
  const auto args = std::make_shared<KeepArguments>();
  cli::some_path(sub.add_option("run", args->run, "The folder that the training saves to"))
      ->type_name("RUN")
      ->required();
  cli::output_path(sub.add_option("--to", args->to, "Where they are brought: a folder, or s3://"))
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
                               "Look every so many seconds; what has changed within them is not\n"
                               "over yet"),
                0.05, 86400.0)
      ->type_name("SECONDS")
      ->capture_default_str();
  sub.add_flag("--once", args->once, "Look once, do what there is to do, and end");
  sub.add_flag("--force", args->force,
               "Take the folder of --to though it is not the one before; with --restore\n"
               "replace what is there");
  sub.add_option("--restore", args->restore,
                 "Bring back the checkpoint of that step, or of that name, or the newest, and end")
      ->type_name("STEP");
  cli::some_path(sub.add_option("--into", args->into, "With --restore: to this folder, not to RUN"))
      ->type_name("DIR");
  cli::add_pass_options(sub, common);
  sub.get_option("--io-class")->default_str("idle");
  return {&sub, [&app, &sub, &common, args] { return keep(app, sub, common, *args); }};
}

}  // namespace dsckpt::pack
