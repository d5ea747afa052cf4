// reshard: native ZeRO shards for another number of GPUs, which DeepSpeed loads without any flag.

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

struct ReshardArguments {
  std::string input;
  std::string output;
  SourceOptions source;
  ReshardOptions reshard;
  cli::RunArguments run;
  cli::Common common;
};

void add_options(CLI::App& app, ReshardArguments& args) {
  cli::add_checkpoint_options(app, "input", args.input, args.source);
  cli::output_path(
      app.add_option("output", args.output, "Folder for the new checkpoint, for DeepSpeed to load"))
      ->type_name("DIR")
      ->required();
  cli::in_range(app.add_option("--dp", args.reshard.dp,
                               "Data-parallel ranks of the new run, for each of its mp ranks"),
                1u, kMaxRanks)
      ->type_name("N")
      ->required();
  cli::in_range(app.add_option("--tp", args.reshard.tp,
                               "Tensor-parallel ranks of the new run; default: as it was"),
                1u, kMaxRanks)
      ->type_name("N");
  cli::in_range(
      app.add_option("--pp", args.reshard.pp, "Pipeline stages of the new run; default: as it was"),
      1u, kMaxRanks)
      ->type_name("N");
  app.add_option("--stages", args.reshard.stages,
                 "The layers of the new pipeline stages: the first of each, 0,3,5, or uniform,\n"
                 "parameters or blocks, as partition_method; default: as the present ones tell")
      ->type_name("LIST");
  cli::count_from_one(
      app.add_option("--padded-vocab-size", args.reshard.padded_vocab_size,
                     "Rows of the new run's vocabulary with their padding; default: as the\n"
                     "program's saved arguments tell, else as it was"))
      ->type_name("ROWS");
  cli::count_from_one(
      app.add_option(
          "--kv-heads", args.reshard.kv_heads,
          "AutoTP: the model's key-value heads, by which its ranks share slices that are\n"
          "equal now; default: these stay equal"))
      ->type_name("N");
  cli::in_range(
      app.add_option("--ep", args.reshard.ep,
                     "Expert-parallel ranks of the new run, which divide --dp; default: unchanged"),
      1u, kMaxRanks)
      ->type_name("N");
  cli::in_range(app.add_option("--stage", args.reshard.stage,
                               "ZeRO stage of the new run; default: unchanged"),
                0, 3)
      ->type_name("S");
  cli::count_from_one(
      app.add_option(
          "--sub-group-size", args.reshard.sub_group_size,
          "Stage 3: zero_optimization.sub_group_size of the new run; default: unchanged"))
      ->type_name("ELEMENTS");
  cli::some_path(
      app.add_option("--ds-config", args.reshard.ds_config,
                     "The new run's DeepSpeed configuration: stage, precision, optimizer wrapper,\n"
                     "round_robin_gradients and parameter_alignment are taken from it"))
      ->type_name("FILE");
  app.add_option("--ds-version", args.reshard.ds_version,
                 "Release of DeepSpeed that will load it; default: the one that saved it")
      ->type_name("X.Y.Z");
  cli::input_path(
      app.add_option(
          "--like", args.source.like,
          "Checkpoint of the new run, with its parameter groups, their order and layout.\n"
          "Needed if the input is weights to start from: a Hugging Face folder, a\n"
          ".safetensors or .bin file. Then everything but the values comes from it"))
      ->type_name("CHECKPOINT");
  cli::input_path(
      app.add_option(
          "--weights-from", args.source.weights_from,
          "Weights to use in place of the checkpoint's own, for masters and 16-bit copies,\n"
          "such as the average of zero-to-fp32 --average. Optimizer states and steps stay,\n"
          "and training continues from there"))
      ->type_name("WEIGHTS");
  cli::add_weights_options(app, args.source);
  cli::add_key_map(app, args.source.key_map);
  cli::add_set_change(app, args.source.set_change);
  app.add_flag("--plan-batch", args.reshard.plan_batch,
               "Show the batch settings that keep the global batch on the new ranks, and write\n"
               "ds_config_dpN.json with the one suggested");
  cli::add_follow_links(app, args.source.follow_links);

  cli::add_run_options(app, args.common, args.run, "Replace reshard's earlier output");
  cli::add_common(app, args.common);
  cli::set_examples(
      app,
      {.commands = {"reshard ckpt ckpt_on_6 --dp 6",
                    "reshard ckpt ckpt_z3 --dp 16 --stage 3 --sub-group-size 1000000000",
                    "reshard ckpt ckpt_new --dp 4 --ds-config new_run.json --plan-batch --dry-run",
                    "reshard Llama-3-8B start --dp 8 --like first_steps",
                    "reshard ckpt ckpt_mean --dp 8 --weights-from mean",
                    "reshard ckpt ckpt_tp4 --dp 4 --tp 4 --pp 1"},
       .remarks = {"Then load the new folder as any checkpoint of DeepSpeed's, without",
                   "load_universal."}});
}

int convert(const CLI::App& app, ReshardArguments& args) {
  args.source.optimizer_states = true;
  args.source.module_names = true;
  if (!args.source.weights_from.empty() && args.source.tag == "all") {
    throw UsageError("--weights-from goes with one checkpoint, not with --tag all");
  }
  args.source.cut_anew = args.reshard.tp.has_value() || args.reshard.padded_vocab_size.has_value();
  args.source.slices_apart = !args.source.cut_anew;
  return cli::convert_each_tag(
      app, args.common, args.input, args.source, args.output, args.run,
      [&](const Source& source) { return plan_reshard(source, args.reshard); });
}

}  // namespace

constexpr cli::Tool kReshard{
    "reshard", "Native ZeRO shards for another number of GPUs, loaded by DeepSpeed with no flag.",
    cli::run_tool<ReshardArguments, add_options, convert>};

}  // namespace dsckpt
