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
#include <vector>

#include "checkpoint/checkpoint.h"
#include "cli/cli.h"
#include "cli/run_plan.h"
#include "report/report.h"
#include "weights/peft_adapter.h"
#include "weights/plan_weights.h"

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
  std::string key_map;
  std::string hf_config;
  std::string peft;
  std::string peft_config;
  AdapterOptions adapter;
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
  app.add_option("output_dir", args.output_dir,
                 "Folder for the weights; made if it is missing. Not with --peft");
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
  app.add_option("--key-map", args.key_map,
                 "Rename tensors by the rules in this file, lines of 'REGEX => REPLACEMENT'")
      ->type_name("FILE");
  app.add_option("--hf-config", args.hf_config,
                 "Copy configuration and tokenizer files from this Hugging Face folder,\n"
                 "so that from_pretrained loads the result")
      ->type_name("DIR");

  app.add_flag("--states", args.weights.states,
               "Write the optimizer's states too, as optimizer_states/STATE.safetensors");
  app.add_option("--peft", args.peft,
                 "Write the PEFT adapter that was trained to this folder, and nothing else")
      ->type_name("DIR");
  app.add_option("--peft-config", args.peft_config,
                 "With --peft: its adapter_config.json; default: the one beside the shards, or\n"
                 "what the tensors tell")
      ->type_name("FILE");
  app.add_option("--lora-alpha", args.adapter.lora_alpha,
                 "With --peft, where there is no adapter_config.json: lora_alpha")
      ->type_name("ALPHA");
  app.add_flag("--allow-missing", args.open.allow_missing,
               "Write what is complete without files that are missing or damaged, and list what\n"
               "is not");
  app.add_flag("-d,--debug", args.debug, "Say what was found in the checkpoint");
  cli::add_run_options(app, args.common, args.run, args.dry_run, "Replace files of the same names");
  cli::add_common(app, args.common);
  app.footer(cli::footer(
      "  zero-to-fp32 . weights/ --safe-serialization\n"
      "  zero-to-fp32 checkpoint-50 out -t global_step50 --dtype bf16 --keep-fp32 norm\n"
      "  zero-to-fp32 . weights/ --safe-serialization --hf-config .\n"
      "  zero-to-fp32 checkpoint-50 --peft adapter/"));
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
  for (const WeightsPlan::State& state : plan.states) {
    for (const WeightsSplit::File& file : state.split.files) {
      out += file.path + "\t" + std::to_string(file.tensors.size()) + " tensors\n";
    }
  }
  for (const PlannedFile& file : plan.plan.outputs()) {
    out += file.path + ": " + human_bytes(file.size) + "\n";
  }
  out += "reads " + human_bytes(plan.plan.bytes_read()) + ", writes " +
         human_bytes(plan.plan.bytes_written()) + "\n";
  return out;
}

// A line for each parameter that is not written for the files that are lost.
std::vector<std::string> left_out(const Checkpoint& checkpoint, const WeightsPlan& plan) {
  std::vector<std::string> lines;
  for (const IncompleteParam& param : plan.incomplete) {
    std::string line = "incomplete\t" + printable(param.name) + "\t";
    for (size_t i = 0; i < param.lost.size(); ++i) {
      line += (i == 0 ? "" : ",") + printable(checkpoint.lost_files()[param.lost[i]].display);
    }
    lines.push_back(std::move(line));
  }
  return lines;
}

void check_places(const Arguments& args) {
  if (args.peft.empty()) {
    if (args.output_dir.empty()) {
      throw std::move(UsageError("output_dir is required")).with_hint("--help lists the options");
    }
    if (!args.peft_config.empty() || args.adapter.lora_alpha) {
      throw UsageError("--peft-config and --lora-alpha go with --peft");
    }
    return;
  }
  if (!args.output_dir.empty()) {
    throw std::move(UsageError("output_dir and --peft are both given"))
        .with_hint("--peft writes the adapter alone; run again for the weights");
  }
  if (args.weights.states || !args.hf_config.empty()) {
    throw UsageError("--states and --hf-config go with output_dir, not with --peft");
  }
}

int convert(const CLI::App& app, Arguments& args) {
  check_places(args);
  const std::string output = args.peft.empty() ? args.output_dir : args.peft;
  args.open.optimizer_states = args.weights.states;
  args.adapter.config = args.peft_config;
  args.weights.format = args.safe_serialization ? &kSafetensors : &kTorchBin;
  args.weights.max_shard_size = parse_shard_size(args.max_shard_size);
  args.weights.dtype = parse_dtype(args.dtype);
  args.weights.key_map = args.key_map;
  args.weights.hf_config = args.hf_config;
  args.run.threads = args.common.threads;

  Progress progress;
  const cli::InterruptGuard guard(progress);
  InputFiles inputs;
  const Checkpoint checkpoint = cli::is_weights_input(args.checkpoint_dir, args.open.tag)
                                    ? Checkpoint::from_weights(inputs, args.checkpoint_dir)
                                    : Checkpoint::open(inputs, args.checkpoint_dir, args.open);
  check_output_place(checkpoint, output);
  if (args.debug) std::cerr << dump(facts_json(checkpoint)) << "\n";
  const WeightsPlan plan = args.peft.empty()
                               ? plan_weights(inputs, checkpoint, args.weights)
                               : plan_adapter(inputs, checkpoint, args.weights, args.adapter);
  for (const LostFile& file : checkpoint.lost_files()) {
    cli::note(app, args.common, file.display + ": " + file.why);
  }
  for (const std::string& text : plan.notes) cli::note(app, args.common, text);

  size_t tensors = 0;
  for (const WeightsSplit::File& file : plan.split.files) tensors += file.tensors.size();
  const size_t files = plan.split.files.size();
  return cli::show_or_run(
      app, args.common, args.dry_run, progress,
      {.source = &checkpoint,
       .output = output,
       .what = std::to_string(tensors) + " tensors in " + std::to_string(files) +
               (files == 1 ? " file" : " files"),
       .json =
           [&] {
             nlohmann::json data = plan_json(plan);
             if (args.open.allow_missing) data.update(salvage_json(checkpoint, plan));
             return data;
           },
       .text = [&] { return text_of(plan); },
       .run =
           [&] {
             return run_plan(plan.plan, inputs, checkpoint.records(args.run.verify), output,
                             progress, args.run);
           },
       .notes_after =
           [&] {
             std::vector<std::string> notes = other_weights(plan.plan, output);
             for (std::string& name : notes) {
               name += " of another run stays in " + output +
                       "; whoever loads the folder may take it for the new weights";
             }
             return notes;
           },
       .left_out = left_out(checkpoint, plan)});
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
