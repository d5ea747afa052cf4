// to-universal: a DeepSpeed checkpoint as a Universal Checkpoint, with ds_to_universal.py's command
// line.

#include <CLI/CLI.hpp>
#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "checkpoint/checkpoint.h"
#include "cli/cli.h"
#include "cli/run_plan.h"
#include "report/report.h"
#include "universal/plan_universal.h"

namespace dsckpt {
namespace {

struct Arguments {
  std::string input;
  std::string output;
  OpenOptions open;
  UniversalOptions universal;
  WeightNames names;
  std::string like;
  RunOptions run;
  cli::Common common;
  unsigned extract_workers = 0;
  unsigned merge_workers = 0;
  bool no_strict = false;
  bool keep_temp_folder = false;
  bool inject_missing_state = false;
  bool dry_run = false;
};

void add_options(CLI::App& app, Arguments& args) {
  app.add_option("--input-folder", args.input,
                 "Checkpoint: the folder that has the file `latest`, or one tag's own folder;\n"
                 "or weights to start from: a Hugging Face folder, a .safetensors or .bin file")
      ->type_name("DIR")
      ->required();
  app.add_option("--output-folder", args.output,
                 "Folder for the universal checkpoint; `latest_universal` beside it will name it")
      ->type_name("DIR")
      ->required();
  app.add_option("-t,--tag", args.open.tag, "Which checkpoint; default: what `latest` says")
      ->type_name("TAG");
  cli::add_roots(app, args.open.roots);
  app.add_flag("--no-strict", args.no_strict,
               "Patterns of universal_checkpoint_info that fit no parameter are no error");
  app.add_option("--num-extract-workers", args.extract_workers,
                 "The larger of the two is the number of threads, if --threads is not given")
      ->type_name("N");
  app.add_option("--num-merge-workers", args.merge_workers, "See --num-extract-workers")
      ->type_name("N");
  app.add_flag("--keep-temp-folder", args.keep_temp_folder,
               "Accepted and without effect: there is no temporary folder");
  app.add_flag(
      "--inject-missing-state", args.inject_missing_state,
      "Accepted and without effect: a universal_checkpoint_info that is not needed is not\n"
      "missed, one that is needed cannot be made up");

  app.add_option("--like", args.like,
                 "Of weights: a checkpoint of the run that starts from them, which tells trained,\n"
                 "frozen and tied parameters and the optimizer's states")
      ->type_name("CHECKPOINT");
  cli::add_weights_options(app, args.names);

  cli::add_run_options(app, args.common, args.run, args.dry_run,
                       "Replace a universal checkpoint that is in the output folder");
  cli::add_common(app, args.common);
  app.footer(
      cli::footer("  to-universal --input_folder ckpt/global_step5 --output_folder "
                  "ckpt/universal5\n"
                  "  to-universal --input-folder ckpt --output-folder ckpt/universal --dry-run\n"
                  "  to-universal --input-folder Llama-3-8B --output-folder start/universal\n"
                  "Then set \"checkpoint\": {\"load_universal\": true} in DeepSpeed's "
                  "configuration\nand load ckpt."));
}

std::string text_of(const UniversalPlan& plan) {
  std::string out;
  for (const UniversalPlan::Entry& entry : plan.entries) {
    out += printable(entry.name) + "\t" + to_text(entry.shape) + "\t";
    for (size_t i = 0; i < entry.files.size(); ++i) {
      out += (i == 0 ? "" : ",") + printable(entry.files[i]);
    }
    out += "\n";
  }
  out += std::to_string(plan.plan.outputs().size()) + " files, reads " +
         human_bytes(plan.plan.bytes_read()) + ", writes " +
         human_bytes(plan.plan.bytes_written()) + "\n";
  return out;
}

int convert(const CLI::App& app, Arguments& args) {
  args.open.optimizer_states = true;
  args.universal.strict = !args.no_strict;
  args.run.threads = args.common.threads != 0 ? args.common.threads
                                              : std::max(args.extract_workers, args.merge_workers);
  if (args.keep_temp_folder) {
    cli::note(app, args.common, "there is no temporary folder to keep");
  }

  Progress progress;
  const cli::InterruptGuard guard(progress);
  InputFiles inputs;
  const bool is_weights = cli::is_weights_input(args.input, args.open.tag);
  cli::check_weights_options(is_weights, args.names, args.like);
  std::optional<Checkpoint> like;
  if (!args.like.empty()) {
    like = Checkpoint::open(inputs, args.like, {.tag = {}, .optimizer_states = true});
    args.universal.initial = initial_states_like(*like);
  }
  const Checkpoint checkpoint =
      is_weights ? Checkpoint::from_weights(inputs, args.input, args.names, like ? &*like : nullptr)
                 : Checkpoint::open(inputs, args.input, args.open);
  check_universal_place(checkpoint, args.output, args.run.stage.force);
  const UniversalPlan plan = plan_universal(inputs, checkpoint, args.universal);
  for (const std::string& text : plan.notes) cli::note(app, args.common, text);

  return cli::show_or_run(app, args.common, args.dry_run, progress,
                          {.source = &checkpoint,
                           .output = args.output,
                           .what = std::to_string(plan.entries.size()) + " parameters in " +
                                   std::to_string(plan.plan.outputs().size()) + " files",
                           .json = [&] { return plan_json(plan); },
                           .text = [&] { return text_of(plan); },
                           .run =
                               [&] {
                                 return run_universal(plan, inputs, checkpoint, args.output,
                                                      progress, args.run);
                               }});
}

}  // namespace
}  // namespace dsckpt

int main(int argc, char** argv) {
  using namespace dsckpt;
  Arguments args;
  CLI::App app("A DeepSpeed ZeRO checkpoint as a Universal Checkpoint, for another number of GPUs.",
               "to-universal");
  add_options(app, args);
  return cli::run(app, args.common, argc, argv, [&] { return convert(app, args); });
}
