// to-dcp: a DeepSpeed checkpoint converted to torch.distributed.checkpoint, for FSDP2.

#include <CLI/App.hpp>
#include <CLI/Config.hpp>
#include <CLI/Formatter.hpp>
#include <map>
#include <optional>
#include <string>

#include "cli/cli.h"
#include "cli/every_tag.h"
#include "cli/far_paths.h"
#include "cli/option_facts.h"
#include "cli/tools.h"
#include "dsckpt/dcp.h"

namespace dsckpt {
namespace {

struct ToDcpArguments {
  std::string input;
  std::string output;
  SourceOptions source;
  DcpOptions dcp;
  std::string preset = "torch";
  std::string dtype = "float32";
  cli::RunArguments run;
  cli::Common common;
};

DcpPreset preset_called(const std::string& name) {
  static const std::map<std::string, DcpPreset> kPresets{{"torch", DcpPreset::torch},
                                                         {"accelerate", DcpPreset::accelerate},
                                                         {"trainer", DcpPreset::trainer},
                                                         {"torchtitan", DcpPreset::torchtitan},
                                                         {"lightning", DcpPreset::lightning}};
  return kPresets.at(name);
}

// nullopt: the stored types.
std::optional<DType> type_called(const std::string& name) {
  static const std::map<std::string, std::optional<DType>> kTypes{
      {"float32", DType::float32}, {"fp32", DType::float32},      {"float16", DType::float16},
      {"fp16", DType::float16},    {"bfloat16", DType::bfloat16}, {"bf16", DType::bfloat16},
      {"keep", std::nullopt}};
  return kTypes.at(name);
}

void add_options(CLI::App& app, ToDcpArguments& args) {
  cli::add_checkpoint_options(app, "checkpoint", args.input, args.source);
  cli::output_path(app.add_option("output", args.output, "Folder for the checkpoint of torch"))
      ->type_name("DIR")
      ->required();
  cli::in_range(app.add_option("--dp", args.dcp.dp,
                               "Ranks that are to load it: tensors are cut as FSDP2 cuts them.\n"
                               "Another number of ranks can load it too, and reads more"),
                1u, kMostDcpRanks)
      ->type_name("N")
      ->required();
  cli::one_of(app.add_option(
                  "--preset", args.preset,
                  "Keys and folders for this program: torch (dcp.load of {\"model\", \"optim\"}),\n"
                  "Accelerate, transformers' Trainer, torchtitan, or Lightning Fabric"),
              {"torch", "accelerate", "trainer", "torchtitan", "lightning"})
      ->type_name("WHO")
      ->capture_default_str();
  cli::one_of(
      app.add_option("--dtype", args.dtype,
                     "The model's floating tensors become float32, float16 or bfloat16 (fp32,\n"
                     "fp16, bf16); keep: as stored (masters are float32). Optimizer states stay"),
      {"float32", "float16", "bfloat16", "fp32", "fp16", "bf16", "keep"}, cli::Case::ignored)
      ->type_name("TYPE")
      ->capture_default_str();
  cli::add_key_map(app, args.source.key_map);
  app.add_flag("--weights-only", args.dcp.weights_only,
               "Leave out the optimizer, the scheduler and the counters");
  cli::add_run_options(app, args.common, args.run, "Replace to-dcp's earlier output", false);
  cli::add_common(app, args.common);
  cli::set_examples(app,
                    {.commands = {"to-dcp ckpt ckpt_dcp --dp 8",
                                  "to-dcp checkpoint-500 resume --dp 8 --preset trainer",
                                  "to-dcp ckpt weights_dcp --dp 64 --weights-only --dtype bf16"},
                     .remarks = {"Then load the folder with torch.distributed.checkpoint.load and",
                                 "set_state_dict."}});
}

int convert(const CLI::App& app, ToDcpArguments& args) {
  args.dcp.preset = preset_called(args.preset);
  args.dcp.dtype = type_called(args.dtype);
  args.source.optimizer_states = !args.dcp.weights_only;
  args.source.module_names = true;
  return cli::convert_each_tag(app, args.common, args.input, args.source, args.output, args.run,
                               [&](const Source& source) { return plan_dcp(source, args.dcp); });
}

}  // namespace

constexpr cli::Tool kToDcp{
    "to-dcp", "A DeepSpeed checkpoint as one of torch.distributed.checkpoint, for FSDP2.",
    cli::run_tool<ToDcpArguments, add_options, convert>};

}  // namespace dsckpt
