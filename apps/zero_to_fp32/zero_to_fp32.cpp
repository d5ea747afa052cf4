// zero-to-fp32: weights from a DeepSpeed ZeRO checkpoint, as .bin or safetensors.

#include <CLI/App.hpp>
#include <CLI/Config.hpp>
#include <CLI/Formatter.hpp>
#include <filesystem>
#include <iostream>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>
#include <vector>

#include "base/json.h"
#include "base/text.h"
#include "cli/carry_out.h"
#include "cli/cli.h"
#include "cli/every_tag.h"
#include "cli/far_paths.h"
#include "cli/messages.h"
#include "cli/option_facts.h"
#include "cli/steps.h"
#include "cli/tools.h"
#include "dsckpt/error.h"
#include "dsckpt/weights.h"
#include "job/job_impl.h"
#include "weights/peft_adapter.h"
#include "weights/weights_format.h"

namespace dsckpt {
namespace {

struct ZeroToFp32Arguments {
  cli::Common common;
  std::string input;
  std::string output_dir;
  std::vector<std::string> more;  // positionals after these
  bool average = false;
  AverageOptions averaged;
  std::string max_shard_size = "5GB";
  bool safe_serialization = false;
  SourceOptions source;
  WeightsOptions weights;
  cli::RunArguments run;
  std::string dtype = "float32";
  std::string hf_config;
  std::string names;
  std::string peft;
  std::string merge;
  AdapterOptions adapter;
  bool debug = false;
};

// The value of --merge for the base in the checkpoint itself.
constexpr std::string_view kOwnBase = "checkpoint";

// The names of zero_to_fp32.py OUTPUT_DTYPE_NAMES, and "keep".
std::optional<DType> parse_dtype(const std::string& name) {
  static const std::map<std::string, std::optional<DType>> kNames{
      {"float32", DType::float32}, {"fp32", DType::float32},      {"float16", DType::float16},
      {"fp16", DType::float16},    {"bfloat16", DType::bfloat16}, {"bf16", DType::bfloat16},
      {"keep", std::nullopt}};
  return kNames.at(name);
}

// Returns the type for --dtype auto.
DType type_in_config(const Source& source, const WeightsOptions& weights) {
  const std::optional<DType> dtype = configured_dtype(source, weights);
  if (dtype) return *dtype;
  throw UsageError("--dtype auto: there is no config.json with a dtype beside the checkpoint")
      .with_hint("--hf-config DIR names the folder of one; or give the type, as --dtype bf16");
}

void add_options(CLI::App& app, ZeroToFp32Arguments& args) {
  cli::add_checkpoint_options(app, "checkpoint_dir", args.input, args.source);
  cli::either_path(
      app.add_option("output_dir", args.output_dir,
                     "Folder for the weights; made if it is missing. Not with --peft"));
  cli::input_path(
      app.add_option(
          "more", args.more,
          "With --average: checkpoints or weights, except the last, which is the folder for the\n"
          "result"))
      ->type_name("DIR");
  app.add_flag(
      "--average", args.average,
      "Average several checkpoints of one model: sum(w * x) / sum(w) in double precision,\n"
      "rounded once to --dtype. Buffers are those of the newest, by its step, or else the\n"
      "last given");
  cli::count_from_one(app.add_option("--last", args.averaged.last,
                                     "With --average: of one folder, its N newest complete tags"))
      ->type_name("N");
  app.add_option(
         "--weights", args.averaged.weights,
         "With --average: w, one number above 0 for each checkpoint, in the given order (with\n"
         "--last the oldest first), divided by their sum; default: all alike")
      ->type_name("W,W,...")
      ->delimiter(',')
      ->allow_extra_args(false);
  app.add_option("--ema", args.averaged.ema,
                 "With --average: the exponential moving average over the checkpoints by their "
                 "steps:\nA = the oldest, then A = DECAY * A + (1 - DECAY) * the next")
      ->type_name("DECAY");
  app.add_flag("--safe-serialization", args.safe_serialization,
               "Write safetensors instead of .bin files");
  app.add_option("--max-shard-size", args.max_shard_size,
                 "Largest file: digits and KB, MB, GB or TB; none: a single file")
      ->type_name("SIZE")
      ->capture_default_str();
  app.add_flag("--exclude-frozen-parameters", args.weights.exclude_frozen_parameters,
               "Leave out parameters that were not trained");
  cli::one_of(
      app.add_option("--dtype", args.dtype,
                     "Floating tensors become float32, float16 or bfloat16 (fp32, fp16, bf16);\n"
                     "keep: as stored (masters are float32); auto: the type in config.json"),
      {"float32", "float16", "bfloat16", "fp32", "fp16", "bf16", "keep", "auto"},
      cli::Case::ignored)
      ->type_name("TYPE")
      ->capture_default_str();
  app.add_option("--keep-fp32", args.weights.keep_fp32, "These stay float32 with any --dtype")
      ->type_name("REGEX")
      ->allow_extra_args(false);
  app.add_option("--include", args.weights.include, "Write only tensors whose name matches")
      ->type_name("REGEX")
      ->allow_extra_args(false);
  app.add_option("--exclude", args.weights.exclude, "Leave out tensors whose name matches")
      ->type_name("REGEX")
      ->allow_extra_args(false);
  app.add_option("--strip-prefix", args.weights.strip_prefix,
                 "Remove this from the front of names that have it")
      ->type_name("PREFIX")
      ->allow_extra_args(false);
  cli::add_key_map(app, args.weights.key_map);
  cli::one_of(
      app.add_option("--names", args.names,
                     "Call tensors as save_pretrained does (hub), or as the module has them "
                     "(module);\ndefault: hub for a model that a config.json of transformers 5 "
                     "names"),
      {"hub", "module"})
      ->type_name("WHOSE");
  cli::input_path(
      app.add_option(
          "--hf-config", args.hf_config,
          "Copy configuration, tokenizer and processor files from this Hugging Face folder,\n"
          "so that from_pretrained loads the result; default: those beside the checkpoint.\n"
          "none: copy none"))
      ->type_name("DIR");

  app.add_flag("--states", args.weights.states,
               "Write the optimizer's states too, as optimizer_states/STATE.safetensors");
  app.add_flag("--torch-optimizer", args.weights.torch_optimizer,
               "Write the optimizer too, as optimizer.pt for optimizer.load_state_dict");
  cli::output_path(
      app.add_option("--peft", args.peft, "Write only the trained PEFT adapter, to this folder"))
      ->type_name("DIR");
  cli::input_path(
      app.add_option(
          "--merge", args.merge,
          "Write the model with the trained PEFT adapter merged into BASE, the model before: a\n"
          "Hugging Face folder, other weights, or the word checkpoint for the base that the run\n"
          "saved itself. The checkpoint may be a folder of peft's save_pretrained"))
      ->type_name("BASE");
  cli::some_path(
      app.add_option(
          "--peft-config", args.adapter.config,
          "With --peft or --merge: its adapter_config.json; default: the one beside the shards,\n"
          "or derived from the tensors"))
      ->type_name("FILE");
  app.add_option("--lora-alpha", args.adapter.lora_alpha,
                 "With --peft or --merge, if there is no adapter_config.json: lora_alpha")
      ->type_name("ALPHA");
  app.add_flag("--allow-missing", args.source.allow_missing,
               "Write the parameters that are complete without missing or damaged files, and list\n"
               "the others");
  app.add_flag("-d,--debug", args.debug, "Print facts about the checkpoint");
  cli::add_run_options(app, args.common, args.run, "Replace files of the same names");
  cli::add_common(app, args.common);
  cli::set_examples(
      app,
      {.commands = {"zero-to-fp32 . weights/ --safe-serialization",
                    "zero-to-fp32 checkpoint-50 out -t global_step50 --dtype bf16 --keep-fp32 norm",
                    "zero-to-fp32 . weights/ --safe-serialization --dtype auto",
                    "zero-to-fp32 checkpoint-50 --peft adapter/",
                    "zero-to-fp32 checkpoint-50 merged/ --merge base/ --safe-serialization",
                    "zero-to-fp32 . averaged/ --average --last 5"},
       .remarks = {}});
}

// Moves the positional arguments to the checkpoints to average, except the output, which is last.
std::vector<std::filesystem::path> take_averaged(ZeroToFp32Arguments& args) {
  std::vector<std::filesystem::path> paths{args.input};
  if (!args.output_dir.empty()) paths.emplace_back(args.output_dir);
  paths.insert(paths.end(), args.more.begin(), args.more.end());
  if (args.peft.empty() && paths.size() > 1) {
    args.output_dir = paths.back().string();
    paths.pop_back();
  } else {
    args.output_dir.clear();
  }
  if (args.weights.states || args.weights.torch_optimizer) {
    throw UsageError(std::string(args.weights.states ? "--states" : "--torch-optimizer") +
                     " and --average are both given")
        .with_hint("optimizer states are not averaged");
  }
  return paths;
}

void check_combinations(const ZeroToFp32Arguments& args) {
  if (!args.average) {
    if (!args.more.empty()) {
      throw UsageError("'" + args.more.front() + "': there is one checkpoint and one output_dir")
          .with_hint("--average takes several checkpoints; --root DIR reads other nodes' folders");
    }
    if (args.averaged.last != 0 || !args.averaged.weights.empty() || args.averaged.ema) {
      throw UsageError("--last, --weights and --ema go with --average")
          .with_hint("add --average: zero-to-fp32 CHECKPOINT OUTPUT_DIR --average --last 2");
    }
  }
  if (args.peft.empty()) {
    if (args.output_dir.empty()) {
      throw UsageError("output_dir is required")
          .with_hint("zero-to-fp32 CHECKPOINT OUTPUT_DIR; --help lists the options");
    }
    if (args.merge.empty() && (!args.adapter.config.empty() || args.adapter.lora_alpha)) {
      throw UsageError("--peft-config and --lora-alpha go with --peft or --merge");
    }
    return;
  }
  if (!args.merge.empty()) {
    throw UsageError("--peft and --merge are both given")
        .with_hint("--peft writes the adapter alone; run again for the merged model");
  }
  if (!args.output_dir.empty()) {
    throw UsageError("output_dir and --peft are both given")
        .with_hint("--peft writes the adapter alone; run again for the weights");
  }
  const bool has_states = args.weights.states || args.weights.torch_optimizer;
  if (has_states || !args.hf_config.empty() || !args.names.empty()) {
    throw UsageError(
        "--states, --torch-optimizer, --names and --hf-config go with output_dir, not with --peft");
  }
}

// Decides which configuration and tokenizer are copied.
void take_companions(ZeroToFp32Arguments& args) {
  if (args.hf_config.empty() && !args.merge.empty() && args.merge != kOwnBase) {
    std::error_code failed;
    const std::filesystem::path base = args.merge;
    if (std::filesystem::exists(base / "config.json", failed)) args.weights.hf_config = base;
  } else if (args.hf_config.empty()) {
    if (args.peft.empty()) args.weights.companions = args.output_dir;
    // A commit to a store that was killed may have published them.
    args.weights.replace =
        args.run.options.force || args.run.options.resume || !args.run.steps.planned_in.empty();
  } else if (args.hf_config != "none") {
    args.weights.hf_config = args.hf_config;
  }
}

// DeepSpeed's older scripts took a file name here.
void note_folder(const CLI::App& app, const cli::Common& common,
                 const std::filesystem::path& output) {
  std::error_code failed;
  if (!is_weights_file(output.filename().string()) || std::filesystem::exists(output, failed))
    return;
  cli::note(app, common, output.string() + " is the folder that the file is written into");
}

// DeepSpeed's script writes names such as base_model.model.q_proj.lora_A.default.weight, which no
// program loads.
void refuse_adapter_as_it_is(const Checkpoint& checkpoint, const ZeroToFp32Arguments& args) {
  if (!args.weights.include.empty()) return;
  const std::string name = trained_adapter_tensor(checkpoint);
  if (name.empty()) return;
  throw UsageError("a PEFT adapter was trained, and no program loads tensors with names such as '" +
                   printable(name) + "'")
      .with_hint(
          "--peft DIR writes the adapter, --merge BASE the model with it; --include . "
          "writes the tensors under the names they have");
}

int convert_one(const CLI::App& app, ZeroToFp32Arguments& args,
                const std::vector<std::filesystem::path>& averaged) {
  take_companions(args);
  Progress progress;
  const cli::InterruptGuard guard(progress);
  args.source.progress = &progress;
  const bool adapter = !args.peft.empty();
  const Job job = cli::while_shown(progress, args.common, [&] {
    const Source source = args.average ? Source::open_average(averaged, args.source, args.averaged)
                                       : Source::open(args.input, args.source);
    if (args.debug) std::cerr << dump(facts_json(*source->checkpoint)) << "\n";
    args.weights.dtype =
        args.dtype == "auto" ? type_in_config(source, args.weights) : parse_dtype(args.dtype);
    if (!args.merge.empty()) {
      return plan_merge(
          source, args.weights,
          {.base = args.merge == kOwnBase ? "" : args.merge, .adapter = args.adapter});
    }
    if (adapter) return plan_adapter(source, args.weights, args.adapter);
    refuse_adapter_as_it_is(*source->checkpoint, args);
    return plan_weights(source, args.weights);
  });
  const std::filesystem::path output = adapter ? args.peft : args.output_dir;
  note_folder(app, args.common, output);
  return cli::carry_out(app, args.common, job, output, args.run, progress);
}

int convert(const CLI::App& app, ZeroToFp32Arguments& args) {
  std::vector<std::filesystem::path> averaged;
  if (args.average) averaged = take_averaged(args);
  check_combinations(args);
  args.source.optimizer_states = args.weights.states || args.weights.torch_optimizer;
  if (!args.names.empty())
    args.weights.names = args.names == "hub" ? TensorNames::hub : TensorNames::module;
  // Weights that are converted; an adapter has no names of the hub.
  args.source.module_names = args.names == "module" && args.merge.empty() && args.peft.empty();
  args.weights.format = args.safe_serialization ? &kSafetensors : &kTorchBin;
  args.weights.max_shard_size =
      args.max_shard_size == "none" ? kOneFile : parse_size(args.max_shard_size, "shard size");
  std::string& output = args.peft.empty() ? args.output_dir : args.peft;
  if (args.average && args.common.is_later_share) {
    return cli::work_on_share(app, args.common, output, args.run);
  }
  if (args.average) return convert_one(app, args, averaged);
  return cli::for_each_tag(app, args.common, args.input, args.source, output, args.run,
                           [&] { return convert_one(app, args, averaged); });
}

}  // namespace

constexpr cli::Tool kZeroToFp32{
    "zero-to-fp32", "Weights from a DeepSpeed ZeRO checkpoint, bit for bit what the engine held.",
    cli::run_tool<ZeroToFp32Arguments, add_options, convert>};

}  // namespace dsckpt
