// A PEFT adapter from the checkpoint of a run that trained one: the folder that peft's
// save_pretrained writes, which PeftModel.from_pretrained loads.
#pragma once

#include <filesystem>
#include <optional>
#include <string>

#include "weights/plan_weights.h"

namespace dsckpt {

struct AdapterOptions {
  // adapter_config.json; empty: the one beside the shards, or else one that is derived.
  std::filesystem::path config;
  // For a derived one: no tensor tells it.
  std::optional<double> lora_alpha;
};

// The name under which peft saves a tensor of the adapter `adapter`: peft.utils.save_and_load
// get_peft_model_state_dict.
struct AdapterTensorName {
  std::string adapter;  // "default"
  std::string saved;    // "base_model.model.q_proj.lora_A.weight"
};
// nullopt if a tensor of this name belongs to no adapter.
std::optional<AdapterTensorName> adapter_tensor_name(const std::string& name);

// Plans adapter_model.safetensors and adapter_config.json. Of `weights`, what chooses tensors,
// their names and types counts. Trained tensors that are no part of the adapter are left out with a
// note, as peft does. Throws UsageError if no adapter was trained, or several; if names do not
// begin with base_model.model.; if there is no configuration and none can be derived.
// InconsistentError for a configuration whose rank is not that of the tensors, and for an adapter
// that lost files hold a part of.
WeightsPlan plan_adapter(InputFiles& inputs, const Checkpoint& checkpoint,
                         const WeightsOptions& weights, const AdapterOptions& options);

}  // namespace dsckpt
