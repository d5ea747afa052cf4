// The optimizer states beside the weights: their values for every element of a parameter.
//
//   optimizer_states/exp_avg.safetensors             or, of several files,
//   optimizer_states/exp_avg-00001-of-00002.safetensors
//   optimizer_states/exp_avg.safetensors.index.json
//
// They have a folder of their own, because they have the weights' names. Some loaders of weights
// take every *.safetensors file of a folder, or its only *.index.json. Element types are those of
// the checkpoint. The header's metadata has "step.NAME", the step count of that parameter, and, as
// for weights, the owner of each tied name.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "plan/copy_plan.h"
#include "weights/selection.h"
#include "weights/weights_format.h"

namespace dsckpt {

inline constexpr std::string_view kStatesFolder = "optimizer_states";

// The optimizer's values under one key, in files of their own.
struct StateFiles {
  std::string key;
  WeightsSplit split;
};

// Lays out the states of `chosen` in files of up to `max_shard_size` bytes. States without a value
// for each element are left out with a note. Throws UsageError if there are no states. Throws
// UnsupportedError for states that belong to no known parameter (unassigned_states), and for a name
// that no file can have.
std::vector<StateFiles> lay_out_states(PlanBuilder& plan, const Checkpoint& checkpoint,
                                       const std::vector<ChosenTensor>& chosen,
                                       uint64_t max_shard_size, std::vector<std::string>& notes);

}  // namespace dsckpt
