// The parts of a checkpoint that are merged into a base: the tensors of its adapter, layer by
// layer, and other trained tensors.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "checkpoint/checkpoint.h"
#include "dsckpt/weights.h"
#include "weights/selection.h"

namespace dsckpt {

// The tensors of LoRA on one module, or on one of its parameters.
struct LoraTensors {
  std::string name;    // of one of them, for messages
  std::string module;  // in the base
  const ChosenTensor* a = nullptr;
  const ChosenTensor* b = nullptr;
  const ChosenTensor* bias = nullptr;
  const ChosenTensor* magnitude = nullptr;
  bool is_embedding = false;
};

// A tensor that replaces the base's.
struct WholeTensor {
  const ChosenTensor* tensor;
  bool of_adapter;  // else it was trained beside the adapter
};

// The adapter, and other trained tensors.
struct TrainedParts {
  std::string adapter;                              // its name; "" of a folder of its own
  std::map<std::string, LoraTensors> layers;        // by the module's whole name
  std::map<std::string, WholeTensor> whole;         // by name in the base
  std::map<std::string, const ChosenTensor*> rows;  // by module in the base: some rows of it
  bool has_methods = false;
};

// The base's name of a tensor of a PeftModel, or of one of its modules: without the parts that
// peft's wrappers add.
std::string name_in_base(const std::string& name);

// Finds the parts among `chosen`; the result points into it. `own_base`: the base is of the same
// checkpoint. Throws as plan_merge.
TrainedParts find_trained_parts(const Checkpoint& checkpoint,
                                const std::vector<ChosenTensor>& chosen,
                                const AdapterOptions& options, bool own_base);

}  // namespace dsckpt
