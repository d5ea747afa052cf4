// Weights: the tensors of a Source as files that torch, safetensors and transformers load.
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
// pytorch_model.bin: what torch.save(state_dict) writes.
DSCKPT_EXPORT extern const WeightsFormat kTorchBin;
// model.safetensors: what safetensors.torch.save_file(state_dict, metadata={"format": "pt"})
// writes. An alias is not stored; its owner's name stands in the metadata under the alias's, as
// huggingface_hub's save_torch_state_dict does it.
DSCKPT_EXPORT extern const WeightsFormat kSafetensors;

// As WeightsOptions::max_shard_size: one file, whose tensors are in the checkpoint's order.
inline constexpr uint64_t kOneFile = ~uint64_t{0};

// How tensors of a model of the transformers library are called. Since its release 5 a module has
// other names, and other tensors, than files on the hub: experts fused to one tensor, for instance.
enum class TensorNames : uint8_t {
  by_config,  // hub, if a config.json that comes along says whose they are; else module
  hub,        // as save_pretrained writes them, of a model made of its configuration
  module,     // as the engine has them
};

struct WeightsOptions {
  const WeightsFormat* format = &kTorchBin;
  // What floating tensors become; nullopt leaves each as it is stored (masters are fp32).
  std::optional<DType> dtype = DType::float32;
  uint64_t max_shard_size = 5'000'000'000;  // bytes; a larger tensor gets a file of its own
  bool exclude_frozen_parameters = false;
  // RE2 patterns, searched in the names the checkpoint has. With `include`, only what one of them
  // finds is written; what one of `exclude` finds is not.
  std::vector<std::string> include = {};
  std::vector<std::string> exclude = {};
  // Floating tensors found by one of these become float32 whatever `dtype` says.
  std::vector<std::string> keep_fp32 = {};
  // Taken from the front of names that have it; the first that fits, once.
  std::vector<std::string> strip_prefix = {};
  // A file of rules that rename what is left then, cut it and join it, with the states: lines of
  // "REGEX => REPLACEMENT" (apps/zero_to_fp32/README.md).
  std::filesystem::path key_map = {};
  // `by_config` is module where rules rename, or the states are written. Rules rename the hub's
  // names where these are asked for; all patterns are for the checkpoint's.
  TensorNames names = TensorNames::by_config;
  // Write what the optimizer keeps of the parameters too, optimizer_states/STATE.safetensors. The
  // source has to be open with SourceOptions::optimizer_states.
  bool states = false;
  // Write the optimizer's state_dict too, optimizer.pt, of all trained parameters, as torch's
  // optimizers load it. The source has to be open likewise.
  bool torch_optimizer = false;
  // A Hugging Face model folder whose configuration, tokenizer and processor files are copied
  // along. config.json then says what type most elements of the weights have.
  std::filesystem::path hf_config = {};
  // Where that is empty: whether such files that lie beside the checkpoint are, to this output
  // folder. What is there of the same name stays, with a note if it is another, unless `replace` is
  // set and they differ in the type of the weights at most. A path without name: to any folder.
  std::optional<std::filesystem::path> companions = {};
  bool replace = false;
};

// The type that config.json says the weights have, of WeightsOptions::hf_config or beside the
// checkpoint; nullopt if there is none. Throws as plan_weights does.
DSCKPT_EXPORT std::optional<DType> configured_dtype(const Source& source,
                                                    const WeightsOptions& options = {});

// Equals what DeepSpeed's zero_to_fp32.py writes where that is right; frozen parameters of stage 1
// are there too. Reads metadata only. Throws UsageError for bad patterns, names that collide, an
// empty selection, and TensorNames::hub without a config.json or with the states; UnsupportedError
// for tensors the format cannot hold, and for TensorNames::hub of a model that no rule is known of.
DSCKPT_EXPORT Job plan_weights(const Source& source, const WeightsOptions& options = {});

struct AdapterOptions {
  // adapter_config.json; empty: the one beside the shards, or else one that is derived.
  std::filesystem::path config = {};
  // For a derived one: no tensor tells it.
  std::optional<double> lora_alpha = {};
};

// The PEFT adapter that the run trained, as peft's save_pretrained writes it: of `weights`, what
// chooses tensors, their names and types counts. Trained tensors that are no part of the adapter
// are left out with a note, as peft does. Of several adapters each has a folder of its name, but
// for "default". Throws UsageError if no adapter was trained; for a configuration that is given
// where there are several; if names do not begin with base_model.model.; if there is no
// configuration and none can be derived. InconsistentError for a configuration whose rank is not
// that of the tensors, and for an adapter that lost files hold a part of. UnsupportedError for a
// prompt that peft computes by a network.
DSCKPT_EXPORT Job plan_adapter(const Source& source, const WeightsOptions& weights = {},
                               const AdapterOptions& options = {});

struct MergeOptions {
  // What the adapter was trained on: weights, or a checkpoint of them. Empty: the frozen parameters
  // of the source itself.
  std::filesystem::path base = {};
  AdapterOptions adapter = {};
};

// The model that peft's merge_and_unload makes of the base and the PEFT adapter that was trained,
// or that the source, a folder of peft's save_pretrained, holds. Each weight is computed in float64
// and rounded once to the type it is written as; where peft computes in float32, it is as near to
// that as peft's own roundings. Tensors, their names and their order are the base's; what was
// trained besides the adapter stands in the place of what the base has. Of `weights`, what chooses
// and renames tensors counts for the source, and type, format and files for what is written; dtype
// nullopt keeps the base's types, and configurations are those of `hf_config`. LoRA with rsLoRA,
// DoRA, lora_bias, rank_pattern, alpha_pattern, target_parameters and fan_in_fan_out on linear
// layers, embeddings and convolutions, modules_to_save and trainable tokens are merged. Throws
// UsageError if no adapter was trained, or several, and without a configuration; UnsupportedError
// for other methods, other variants of LoRA, and quantized bases; InconsistentError for what the
// base does not have or has of another shape, by name.
DSCKPT_EXPORT Job plan_merge(const Source& source, const WeightsOptions& weights = {},
                             const MergeOptions& options = {});

}  // namespace dsckpt
