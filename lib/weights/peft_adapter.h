// A PEFT adapter from the checkpoint of a run that trained one: the folder that peft's
// save_pretrained writes, which PeftModel.from_pretrained loads.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "checkpoint/checkpoint.h"

namespace dsckpt {

// The prefix of names in a PeftModel.
inline constexpr std::string_view kPeftPrefix = "base_model.model.";

// The name under which peft saves a tensor of the adapter `adapter`: peft.utils.save_and_load
// get_peft_model_state_dict.
struct AdapterTensorName {
  std::string adapter;  // "default"
  // "base_model.model.q_proj.lora_A.weight"; "" if peft does not save this tensor, but a result
  // that the model computes from it (P-tuning's network).
  std::string saved;
};
// nullopt if a tensor of this name belongs to no adapter.
std::optional<AdapterTensorName> adapter_tensor_name(const std::string& name);

// The place of an adapter's tensor in a model. "base_model.model.q_proj.lora_A.default.weight" is
// the member "weight" of the method "lora_A". Its module is "base_model.model.q_proj".
struct AdapterPart {
  std::string module = {};  // "" if an adapter has the tensor once for the whole model
  std::string method = {};
  std::string member = {};
};
// `names_adapter`: the adapter's name follows the method, as in a model and unlike in saved files.
// nullopt if a tensor of this name belongs to no adapter.
std::optional<AdapterPart> adapter_part(const std::string& name, bool names_adapter);

// The name of a trained tensor of an adapter, or "" if none was trained. For weights, which name no
// adapter, it is "".
std::string trained_adapter_tensor(const Checkpoint& checkpoint);

// False if the checkpoint tells that no optimizer owns it.
bool may_be_trained(const Checkpoint& checkpoint, const Param& param);

// Throws UsageError for `command` if a name is not one of a PeftModel.
void check_peft_prefix(const std::string& name, const std::string& command);

// True if peft saves something other than the tensors for the method of this name.
bool is_of_unsaved_method(const std::string& name);

}  // namespace dsckpt
