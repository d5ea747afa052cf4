// A PEFT adapter from the checkpoint of a run that trained one: the folder that peft's
// save_pretrained writes, which PeftModel.from_pretrained loads.
#pragma once

#include <optional>
#include <string>

namespace dsckpt {

// The name under which peft saves a tensor of the adapter `adapter`: peft.utils.save_and_load
// get_peft_model_state_dict.
struct AdapterTensorName {
  std::string adapter;  // "default"
  // "base_model.model.q_proj.lora_A.weight"; "" for what peft does not save itself, but what the
  // model makes of it (P-tuning's network).
  std::string saved;
};
// nullopt if a tensor of this name belongs to no adapter.
std::optional<AdapterTensorName> adapter_tensor_name(const std::string& name);

}  // namespace dsckpt
