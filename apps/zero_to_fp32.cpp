// zero-to-fp32: weights from a DeepSpeed ZeRO checkpoint, as .bin or safetensors.

#include <CLI/App.hpp>
#include <CLI/Config.hpp>
#include <CLI/Formatter.hpp>
#include <CLI/Validators.hpp>
#include <iostream>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "checkpoint/checkpoint.h"
#include "cli.h"
#include "convert.h"
#include "report.h"
#include "run_plan.h"

namespace dsckpt {
namespace {

struct Arguments {
  cli::Common common;
  std::string checkpoint_dir;
  std::string output_dir;
  std::string max_shard_size = "5GB";
  bool safe_serialization = false;
  OpenOptions open;
  WeightsOptions weights;
  RunOptions run;
  std::string dtype = "float32";
  std::string hf_config;
  bool debug = false;
  bool dry_run = false;
};

// zero_to_fp32.py OUTPUT_DTYPE_NAMES, and "keep".
std::optional<DType> parse_dtype(const std::string& name) {
  static const std::map<std::string, std::optional<DType>> kNames{
      {"float32", DType::float32}, {"fp32", DType::float32},      {"float16", DType::float16},
      {"fp16", DType::float16},    {"bfloat16", DType::bfloat16}, {"bf16", DType::bfloat16},
      {"keep", std::nullopt}};
  return kNames.at(name);
}

void add_options(CLI::App& app, Arguments& args) {
  cli::add_checkpoint_options(app, "checkpoint_dir", args.checkpoint_dir, args.open);
  app.add_option("output_dir", args.output_dir, "Folder for the weights; made if it is missing")
      ->required();
  app.add_flag("--safe-serialization", args.safe_serialization,
               "Write safetensors instead of .bin files");
  app.add_option("--max-shard-size", args.max_shard_size,
                 "Largest file: digits and KB, MB, GB or TB")
      ->type_name("SIZE")
      ->capture_default_str();
  app.add_flag("--exclude-frozen-parameters", args.weights.exclude_frozen_parameters,
               "Leave out parameters that were not trained");
  app.add_option("--dtype", args.dtype,
                 "Floating tensors become float32, float16 or bfloat16 (fp32, fp16, bf16);\n"
                 "keep: as stored (masters are float32)")
      ->transform(CLI::IsMember({"float32", "float16", "bfloat16", "fp32", "fp16", "bf16", "keep"},
                                CLI::ignore_case))
      ->option_text("TYPE=float32");
  app.add_option("--keep-fp32", args.weights.keep_fp32, "These stay float32 whatever --dtype says")
      ->type_name("REGEX")
      ->allow_extra_args(false);
  app.add_option("--include", args.weights.include, "Write only tensors whose name matches")
      ->type_name("REGEX")
      ->allow_extra_args(false);
  app.add_option("--exclude", args.weights.exclude, "Leave out tensors whose name matches")
      ->type_name("REGEX")
      ->allow_extra_args(false);
  app.add_option("--strip-prefix", args.weights.strip_prefix,
                 "Take this from the front of names that have it")
      ->type_name("PREFIX")
      ->allow_extra_args(false);
  app.add_option("--hf-config", args.hf_config,
                 "Copy configuration and tokenizer files from this Hugging Face folder,\n"
                 "so that from_pretrained loads the result")
      ->type_name("DIR");

  app.add_flag("-d,--debug", args.debug, "Say what was found in the checkpoint");
  cli::add_run_options(app, args.common, args.run, args.dry_run, "Replace files of the same names");
  cli::add_common(app, args.common);
  app.footer(cli::footer(
      "  zero-to-fp32 . weights/ --safe-serialization\n"
      "  zero-to-fp32 checkpoint-50 out -t global_step50 --dtype bf16 --keep-fp32 norm\n"
      "  zero-to-fp32 . weights/ --safe-serialization --hf-config ."));
}

std::string text_of(const WeightsPlan& plan) {
  std::string out;
  for (const WeightsSplit::File& file : plan.split.files) {
    for (const OutputTensor& tensor : file.tensors) {
      out += file.path + "\t" + printable(tensor.name) + "\t" +
             std::string(torch_name(tensor.source.dtype())) + "\t" + to_text(tensor.source.shape());
      if (!tensor.alias_of.empty()) out += "\t= " + printable(tensor.alias_of);
      out += "\n";
    }
  }
  for (const PlannedFile& file : plan.plan.outputs()) {
    out += file.path + ": " + human_bytes(file.size) + "\n";
  }
  out += "reads " + human_bytes(plan.plan.bytes_read()) + ", writes " +
         human_bytes(plan.plan.bytes_written()) + "\n";
  return out;
}

int convert(const CLI::App& app, Arguments& args) {
  args.weights.format = args.safe_serialization ? &kSafetensors : &kTorchBin;
  args.weights.max_shard_size = parse_shard_size(args.max_shard_size);
  args.weights.dtype = parse_dtype(args.dtype);
  args.weights.hf_config = args.hf_config;
  args.run.threads = args.common.threads;

  Progress progress;
  const cli::InterruptGuard guard(progress);
  InputFiles inputs;
  const Checkpoint checkpoint = cli::is_weights_input(args.checkpoint_dir, args.open.tag)
                                    ? Checkpoint::from_weights(inputs, args.checkpoint_dir)
                                    : Checkpoint::open(inputs, args.checkpoint_dir, args.open);
  check_output_place(checkpoint, args.output_dir);
  if (args.debug) std::cerr << dump(facts_json(checkpoint)) << "\n";
  const WeightsPlan plan = plan_weights(inputs, checkpoint, args.weights);
  for (const std::string& text : plan.notes) cli::note(app, args.common, text);

  size_t tensors = 0;
  for (const WeightsSplit::File& file : plan.split.files) tensors += file.tensors.size();
  const size_t files = plan.split.files.size();
  return cli::show_or_run(
      app, args.common, args.dry_run, progress,
      {.source = checkpoint,
       .output = args.output_dir,
       .what = std::to_string(tensors) + " tensors in " + std::to_string(files) +
               (files == 1 ? " file" : " files"),
       .json = [&] { return plan_json(plan); },
       .text = [&] { return text_of(plan); },
       .run =
           [&] {
             return run_plan(plan.plan, inputs, checkpoint.records(args.run.verify),
                             args.output_dir, progress, args.run);
           },
       .notes_after =
           [&] {
             std::vector<std::string> notes = other_weights(plan.plan, args.output_dir);
             for (std::string& name : notes) {
               name += " of another run stays in " + args.output_dir +
                       "; whoever loads the folder may take it for the new weights";
             }
             return notes;
           }});
}

}  // namespace
}  // namespace dsckpt

int main(int argc, char** argv) {
  using namespace dsckpt;
  Arguments args;
  CLI::App app("Weights from a DeepSpeed ZeRO checkpoint, bit for bit what the engine held.",
               "zero-to-fp32");
  add_options(app, args);
  return cli::run(app, args.common, argc, argv, [&] { return convert(app, args); });
}
