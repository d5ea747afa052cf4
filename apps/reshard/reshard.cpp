// reshard: native ZeRO shards for another number of GPUs, which DeepSpeed loads with no flag.

#include "dsckpt/reshard.h"

#include <CLI/App.hpp>
#include <CLI/Config.hpp>
#include <CLI/Formatter.hpp>
#include <string>

#include "cli/cli.h"
#include "cli/every_tag.h"
#include "cli/far_paths.h"
#include "cli/option_facts.h"
#include "cli/tools.h"
#include "dsckpt/error.h"

namespace dsckpt {
namespace {

struct Arguments {
  std::string input;
  std::string output;
  SourceOptions source;
  ReshardOptions reshard;
  cli::RunArguments run;
  cli::Common common;
};

void add_options(CLI::App& app, Arguments& args) {
  cli::add_checkpoint_options(app, "input", args.input, args.source);
  cli::output_path(app.add_option("output", args.output,
                                  "Folder for the new checkpoint, which DeepSpeed is to load from"))
      ->type_name("DIR")
      ->required();
  cli::in_range(
      app.add_option(
          "--dp", args.reshard.dp,
          "Data-parallel ranks of the new run; pipeline stages and tensor-parallel ranks stay"),
      1u, kMaxRanks)
      ->type_name("N")
      ->required();
  cli::in_range(
      app.add_option("--ep", args.reshard.ep,
                     "Expert-parallel ranks of the new run, which divide --dp; default: as it was"),
      1u, kMaxRanks)
      ->type_name("N");
  cli::in_range(app.add_option("--stage", args.reshard.stage,
                               "ZeRO stage of the new run; default: as it was"),
                0, 3)
      ->type_name("S");
  cli::count_from_one(
      app.add_option(
          "--sub-group-size", args.reshard.sub_group_size,
          "Stage 3: zero_optimization.sub_group_size of the new run; default: as it was"))
      ->type_name("ELEMENTS");
  cli::some_path(
      app.add_option("--ds-config", args.reshard.ds_config,
                     "The new run's DeepSpeed configuration: stage, precision, optimizer wrapper,\n"
                     "round_robin_gradients and parameter_alignment are taken from it"))
      ->type_name("FILE");
  app.add_option("--ds-version", args.reshard.ds_version,
                 "The release of DeepSpeed that is to load it; default: the one that saved it")
      ->type_name("X.Y.Z");
  cli::input_path(
      app.add_option(
          "--like", args.source.like,
          "A checkpoint that the new run has saved: parameter groups, their order and the\n"
          "layout are taken from it. Needed where the input is weights to start from, a\n"
          "Hugging Face folder, a .safetensors or .bin file: then it has all but the values"))
      ->type_name("CHECKPOINT");
  cli::input_path(
      app.add_option(
          "--weights-from", args.source.weights_from,
          "Weights that the checkpoint gets instead of its own, such as the average that\n"
          "zero-to-fp32 --average wrote: masters and 16-bit copies. Optimizer states and\n"
          "steps stay, and training goes on from there"))
      ->type_name("WEIGHTS");
  cli::add_weights_options(app, args.source);
  cli::add_key_map(app, args.source.key_map);
  app.add_flag("--plan-batch", args.reshard.plan_batch,
               "Show the batch settings that keep the global batch on the new ranks, and write\n"
               "ds_config_dpN.json with the one suggested");
  cli::add_follow_links(app, args.source.follow_links);

  cli::add_run_options(app, args.common, args.run, "Replace what reshard wrote there before");
  cli::add_common(app, args.common);
  cli::set_examples(
      app,
      {.commands = {"reshard ckpt ckpt_on_6 --dp 6",
                    "reshard ckpt ckpt_z3 --dp 16 --stage 3 --sub-group-size 1000000000",
                    "reshard ckpt ckpt_new --dp 4 --ds-config new_run.json --plan-batch --dry-run",
                    "reshard Llama-3-8B start --dp 8 --like first_steps",
                    "reshard ckpt ckpt_mean --dp 8 --weights-from mean"},
       .remarks = {"Then load the new folder as any checkpoint of DeepSpeed's, without",
                   "load_universal."}});
}

int convert(const CLI::App& app, Arguments& args) {
  args.source.optimizer_states = true;
  args.source.module_names = true;
  if (!args.source.weights_from.empty() && args.source.tag == "all") {
    throw UsageError("--weights-from goes with one checkpoint, not with --tag all");
  }
  args.source.slices_apart = true;
  return cli::convert_each_tag(
      app, args.common, args.input, args.source, args.output, args.run,
      [&](const Source& source) { return plan_reshard(source, args.reshard); });
}

}  // namespace

constexpr cli::Tool kReshard{
    "reshard", "Native ZeRO shards for another number of GPUs, loaded by DeepSpeed with no flag.",
    cli::run_tool<Arguments, add_options, convert>};

}  // namespace dsckpt
