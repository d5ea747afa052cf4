// Weights: the tensors of a Source in files that torch, safetensors and transformers load.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "dsckpt/checkpoint.h"
#include "dsckpt/dtype.h"
#include "dsckpt/export.h"
#include "dsckpt/job.h"

namespace dsckpt {

struct WeightsFormat;
// pytorch_model.bin, as torch.save(state_dict) writes it.
DSCKPT_EXPORT extern const WeightsFormat kTorchBin;
// model.safetensors, as safetensors.torch.save_file(state_dict, metadata={"format": "pt"}) writes
// it. Aliases are not stored: the metadata maps each to its owner's name, as huggingface_hub's
// save_torch_state_dict does.
DSCKPT_EXPORT extern const WeightsFormat kSafetensors;

// For WeightsOptions::max_shard_size: one file, with the tensors in the checkpoint's order.
inline constexpr uint64_t kOneFile = ~uint64_t{0};

// The names of tensors of a transformers model. Since release 5 of transformers, a module has other
// names and different tensors than the files on the hub. For instance, it fuses experts into one
// tensor.
enum class TensorNames : uint8_t {
  by_config,  // hub, if a config.json that is copied along names the model; else module
  hub,        // as save_pretrained writes them, for a model made from its configuration
  module,     // as the engine has them
};

struct WeightsOptions {
  const WeightsFormat* format = &kTorchBin;
  // The type that floating tensors are converted to; nullopt keeps the stored types (masters are
  // fp32).
  std::optional<DType> dtype = DType::float32;
  uint64_t max_shard_size = 5'000'000'000;  // bytes; a larger tensor gets a file of its own
  bool exclude_frozen_parameters = false;
  // RE2 patterns, searched in the checkpoint's names. With `include`, only tensors that one of its
  // patterns finds are written. Tensors that a pattern of `exclude` finds are not.
  std::vector<std::string> include = {};
  std::vector<std::string> exclude = {};
  // Floating tensors that one of these finds become float32, whatever `dtype` says.
  std::vector<std::string> keep_fp32 = {};
  // Removed from names that begin with it: the first prefix that fits, once.
  std::vector<std::string> strip_prefix = {};
  // A file of rules that rename the rest of the name, cut tensors and join them, with the states.
  // Its lines are "REGEX => REPLACEMENT" (apps/zero_to_fp32/README.md).
  std::filesystem::path key_map = {};
  // `by_config` means module if the states are written, if key_map is given, and if strip_prefix is
  // not that of a wrapper around the model. With the hub's names, rules rename those, but a
  // wrapper's prefix is taken off before. All patterns are searched in the checkpoint's names.
  TensorNames names = TensorNames::by_config;
  // Write the optimizer states of the parameters too, as optimizer_states/STATE.safetensors. The
  // source must be open with SourceOptions::optimizer_states.
  bool states = false;
  // Write the optimizer's state_dict too, as optimizer.pt: all trained parameters, as torch's
  // optimizers load it. The source must be open with the optimizer states as well.
  bool torch_optimizer = false;
  // A Hugging Face model folder whose configuration, tokenizer and processor files are copied too.
  // The copied config.json then names the type that most elements of the weights have.
  std::filesystem::path hf_config = {};
  // If hf_config is empty: the output folder that such files beside the checkpoint are copied to;
  // nullopt copies none. Files of the same name there stay, with a note if they differ. With
  // `replace` they are replaced if they differ at most in the type of the weights. An empty path
  // stands for any folder.
  std::optional<std::filesystem::path> companions = {};
  bool replace = false;
};

// The type of the weights in the config.json of WeightsOptions::hf_config or beside the checkpoint;
// nullopt if there is none. Throws as plan_weights does.
DSCKPT_EXPORT std::optional<DType> configured_dtype(const Source& source,
                                                    const WeightsOptions& options = {});

// The output equals that of DeepSpeed's zero_to_fp32.py where the script is right; it also has the
// frozen parameters of stage 1. Reads metadata only. Throws UsageError for bad patterns, colliding
// names, an empty selection, and TensorNames::hub without a config.json or with the states. Throws
// UnsupportedError for tensors that the format cannot hold, and for TensorNames::hub of a model
// without known rules.
DSCKPT_EXPORT Job plan_weights(const Source& source, const WeightsOptions& options = {});

struct AdapterOptions {
  // adapter_config.json; empty: the one beside the shards, else a derived one.
  std::filesystem::path config = {};
  // For a derived configuration: no tensor tells it.
  std::optional<double> lora_alpha = {};
};

// The PEFT adapter that the run trained, as peft's save_pretrained writes it. The options in
// `weights` that choose tensors, their names and their types count. Trained tensors outside of the
// adapter are left out with a note, as peft does. If there are several adapters, each gets a folder
// of its name, except "default". Throws UsageError if no adapter was trained, or if a configuration
// is given for several. Throws UsageError if names do not begin with base_model.model., or if there
// is not a configuration and none can be derived. Throws InconsistentError if the configuration's
// rank is not that of the tensors, or if lost files hold a part of the adapter. Throws
// UnsupportedError for a prompt that peft computes with a network.
DSCKPT_EXPORT Job plan_adapter(const Source& source, const WeightsOptions& weights = {},
                               const AdapterOptions& options = {});

struct MergeOptions {
  // The model that the adapter was trained on: weights, or a checkpoint of them. Empty: the frozen
  // parameters of the source itself.
  std::filesystem::path base = {};
  AdapterOptions adapter = {};
};

// The model that peft's merge_and_unload makes of the base and the PEFT adapter. The adapter is the
// one that was trained, or the one in the source, a folder of peft's save_pretrained. Each weight
// is computed in float64 and rounded once to the type that is written. Where peft computes in
// float32, the result differs by no more than peft's own roundings. The tensors are the base's;
// other trained tensors replace them. The options in `weights` that choose and rename tensors apply
// to the source; names, type, format and files apply to the output. A dtype of nullopt keeps the
// base's types. Configurations are those of `hf_config`.
//
// A base with the hub's names is read as its module where the adapter has the module's. By default
// the output then has the hub's names again, also without a configuration that is copied.
//
// Merges LoRA on linear layers, embeddings and convolutions, with rsLoRA, DoRA, lora_bias,
// rank_pattern, alpha_pattern, target_parameters and fan_in_fan_out. Merges modules_to_save and
// trainable tokens too. Throws UsageError if no adapter was trained, or several, and without a
// configuration. Throws UnsupportedError for other methods, other variants of LoRA, and quantized
// bases. Throws InconsistentError for parameters that the base lacks or has in another shape, by
// name.
DSCKPT_EXPORT Job plan_merge(const Source& source, const WeightsOptions& weights = {},
                             const MergeOptions& options = {});

}  // namespace dsckpt
