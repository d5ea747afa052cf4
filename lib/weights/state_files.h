// The optimizer's states beside the weights: what it keeps of every element of a parameter.
//
//   optimizer_states/exp_avg.safetensors             or, of several files,
//   optimizer_states/exp_avg-00001-of-00002.safetensors
//   optimizer_states/exp_avg.safetensors.index.json
//
// A folder of its own, because some who load weights take every *.safetensors file or the only
// *.index.json of a folder, and the states have the weights' names. Element types are those of the
// checkpoint. The header's metadata has "step.NAME", how often that parameter was stepped, and, as
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

// What the optimizer keeps under one key, as files of its own.
struct StateFiles {
  std::string key;
  WeightsSplit split;
};

// Lays out the states of `chosen`, files of up to `max_shard_size` bytes. Whole states, which are
// not one value an element, are left out with a note. Throws UsageError if there are none;
// UnsupportedError for states that nobody can assign (unassigned_states) and for one whose name is
// no file's.
std::vector<StateFiles> lay_out_states(PlanBuilder& plan, const Checkpoint& checkpoint,
                                       const std::vector<ChosenTensor>& chosen,
                                       uint64_t max_shard_size, std::vector<std::string>& notes);

}  // namespace dsckpt
