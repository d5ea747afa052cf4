// reshard: native ZeRO shards for another number of GPUs, which DeepSpeed loads with no flag.

#include <CLI/CLI.hpp>
#include <iostream>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "checkpoint/checkpoint.h"
#include "cli/cli.h"
#include "cli/run_plan.h"
#include "deepspeed/ds_config.h"
#include "report/report.h"
#include "reshard/plan_reshard.h"

namespace dsckpt {
namespace {

struct Arguments {
  std::string input;
  std::string output;
  OpenOptions open;
  ReshardOptions reshard;
  RunOptions run;
  cli::Common common;
  std::string ds_config;
  std::string like;
  WeightNames names;
  bool plan_batch = false;
  bool dry_run = false;
};

void add_options(CLI::App& app, Arguments& args) {
  cli::add_checkpoint_options(app, "input", args.input, args.open);
  app.add_option("output", args.output,
                 "Folder for the new checkpoint, which DeepSpeed is to load from")
      ->type_name("DIR")
      ->required();
  app.add_option(
         "--dp", args.reshard.dp,
         "Data-parallel ranks of the new run; pipeline stages and tensor-parallel ranks stay")
      ->type_name("N")
      ->check(CLI::Range(1, 1 << 16))
      ->required();
  app.add_option("--ep", args.reshard.ep,
                 "Expert-parallel ranks of the new run, which divide --dp; default: as it was")
      ->type_name("N")
      ->check(CLI::Range(1, 1 << 16));
  app.add_option("--stage", args.reshard.stage, "ZeRO stage of the new run; default: as it was")
      ->type_name("S")
      ->check(CLI::Range(0, 3));
  app.add_option("--sub-group-size", args.reshard.sub_group_size,
                 "Stage 3: zero_optimization.sub_group_size of the new run; default: as it was")
      ->type_name("ELEMENTS")
      ->check(CLI::PositiveNumber);
  app.add_option("--ds-config", args.ds_config,
                 "The new run's DeepSpeed configuration: stage, precision, optimizer wrapper,\n"
                 "round_robin_gradients and parameter_alignment are taken from it")
      ->type_name("FILE");
  app.add_option("--like", args.like,
                 "A checkpoint that the new run has saved: parameter groups, their order and the\n"
                 "layout are taken from it. Needed where the input is weights to start from, a\n"
                 "Hugging Face folder, a .safetensors or .bin file: then it has all but the values")
      ->type_name("CHECKPOINT");
  cli::add_weights_options(app, args.names);
  app.add_flag("--plan-batch", args.plan_batch,
               "Show the batch settings that keep the global batch on the new ranks, and write\n"
               "ds_config_dpN.json with the one suggested");

  cli::add_run_options(app, args.common, args.run, args.dry_run,
                       "Replace what reshard wrote there before");
  cli::add_common(app, args.common);
  app.footer(
      cli::footer("  reshard ckpt ckpt_on_6 --dp 6\n"
                  "  reshard ckpt ckpt_z3 --dp 16 --stage 3 --sub-group-size 1000000000\n"
                  "  reshard ckpt ckpt_new --dp 4 --ds-config new_run.json --plan-batch --dry-run\n"
                  "  reshard Llama-3-8B start --dp 8 --like first_steps\n"
                  "Then load the new folder as any checkpoint of DeepSpeed's, without\n"
                  "load_universal."));
}

std::string text_of(const ReshardPlan& plan) {
  std::string out;
  for (const PlannedFile& file : plan.plan.outputs()) {
    out += printable(file.path) + "\t" + human_bytes(file.size) + "\n";
  }
  uint32_t mp_rank = 0;
  size_t first = 0;
  for (size_t g = 0; g < plan.groups.size(); ++g) {
    const ReshardedGroup& group = plan.groups[g];
    if (group.mp_rank != mp_rank) first = g;
    mp_rank = group.mp_rank;
    if (plan.groups.back().mp_rank > 0) out += "mp rank " + std::to_string(mp_rank) + ", ";
    out += "group " + std::to_string(g - first) + ": " + std::to_string(group.params) +
           " parameters, " + std::to_string(group.numel) + " elements";
    if (group.ep > 1) out += " on each of " + std::to_string(group.ep) + " expert-parallel ranks";
    if (group.partition > 0) out += ", " + std::to_string(group.partition) + " a rank";
    if (group.sub_groups > 0) out += " in " + std::to_string(group.sub_groups) + " sub-groups";
    out += "\n";
  }
  out += std::to_string(plan.plan.outputs().size()) + " files, reads " +
         human_bytes(plan.plan.bytes_read()) + ", writes " +
         human_bytes(plan.plan.bytes_written()) + "\n";
  return out;
}

int convert(const CLI::App& app, Arguments& args) {
  args.open.optimizer_states = true;
  args.run.threads = args.common.threads;
  if (!args.ds_config.empty()) args.reshard.ds_config = load_ds_config(args.ds_config);

  Progress progress;
  const cli::InterruptGuard guard(progress);
  InputFiles inputs;
  const bool is_weights = cli::is_weights_input(args.input, args.open.tag);
  cli::check_weights_options(is_weights, args.names);
  std::optional<Checkpoint> like;
  if (!args.like.empty()) {
    like = Checkpoint::open(inputs, args.like, {.tag = {}, .optimizer_states = true});
    if (!is_weights) args.reshard.like = &*like;
  }
  const Checkpoint source =
      is_weights ? Checkpoint::from_weights(inputs, args.input, args.names, like ? &*like : nullptr)
                 : Checkpoint::open(inputs, args.input, args.open);
  const ReshardPlan plan = plan_reshard(inputs, source, args.input, args.reshard, args.plan_batch);
  check_reshard_place(source, plan, args.output, args.run.stage.force);
  for (const std::string& text : plan.notes) cli::note(app, args.common, text);

  if (plan.batch && !args.common.json) std::cout << text_of(*plan.batch);
  return cli::show_or_run(
      app, args.common, args.dry_run, progress,
      {.source = &source,
       .output = args.output,
       .what = "stage " + std::to_string(source.facts().zero_stage) + " of " +
               std::to_string(source.facts().mesh.dp) + " ranks as stage " +
               std::to_string(plan.target.stage) + " of " + std::to_string(plan.target.dp),
       .json = [&] { return plan_json(plan); },
       .text = [&] { return text_of(plan); },
       .run = [&] { return run_reshard(plan, inputs, source, args.output, progress, args.run); }});
}

}  // namespace
}  // namespace dsckpt

int main(int argc, char** argv) {
  using namespace dsckpt;
  Arguments args;
  CLI::App app("Native ZeRO shards for another number of GPUs, loaded by DeepSpeed with no flag.",
               "reshard");
  add_options(app, args);
  return cli::run(app, args.common, argc, argv, [&] { return convert(app, args); });
}
