#include "weights/state_files.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <optional>
#include <set>

#include "dsckpt/error.h"
#include "job/source.h"

namespace dsckpt {
namespace {

// Keys come from a pickle and become file names.
void check_key(const Checkpoint& checkpoint, const std::string& key) {
  const auto is_plain = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_';
  };
  if (!key.empty() && key.size() <= 100 && std::all_of(key.begin(), key.end(), is_plain)) return;
  throw UnsupportedError({.file = checkpoint.tag_folder().string()},
                         "the optimizer's state '" + key + "' is not a name for a file");
}

std::string text_of(double number) {
  if (number == std::floor(number) && std::abs(number) < 1e15) {
    return std::to_string(static_cast<int64_t>(number));
  }
  return std::to_string(number);
}

// Returns the tensors of one state. A tied parameter has the states of its owner.
std::vector<OutputTensor> tensors_of(const std::string& key,
                                     const std::vector<ChosenTensor>& chosen) {
  std::vector<OutputTensor> tensors;
  std::map<std::string, std::string> written;  // owner in the checkpoint, to name here
  for (const auto& [param, weight, made] : chosen) {
    const auto state =
        std::find_if(param->states.begin(), param->states.end(),
                     [&](const ParamState& candidate) { return candidate.key == key; });
    if (state == param->states.end()) continue;
    const std::string& owner = param->alias_of.empty() ? param->name : param->alias_of;
    const auto [first, is_first] = written.emplace(owner, weight.name);
    tensors.push_back(
        {weight.name, without_padding(*param, state->value), is_first ? "" : first->second});
  }
  return tensors;
}

void lay_out(PlanBuilder& plan, const WeightsSplit::File& file,
             const std::map<std::string, std::string>& steps) {
  std::map<std::string, std::string> metadata;
  for (const OutputTensor& tensor : file.tensors) {
    const auto step = steps.find(tensor.name);
    if (step != steps.end()) metadata["step." + tensor.name] = step->second;
  }
  kSafetensors.lay_out(plan, file.path, file.tensors, metadata);
}

}  // namespace

std::vector<StateFiles> lay_out_states(PlanBuilder& plan, const Checkpoint& checkpoint,
                                       const std::vector<ChosenTensor>& chosen,
                                       uint64_t max_shard_size, std::vector<std::string>& notes) {
  if (checkpoint.facts().states != StatesTold::yes) throw unassigned_states(checkpoint);
  std::vector<std::string> keys;  // in the optimizer's order
  std::set<std::string> whole;
  std::map<std::string, std::string> steps;
  for (const auto& [param, weight, made] : chosen) {
    for (const ParamState& state : param->states) {
      if (std::find(keys.begin(), keys.end(), state.key) == keys.end()) keys.push_back(state.key);
    }
    for (const WholeState& other : param->others) {
      if (!other.value.value.is_none()) whole.insert(other.key);
    }
    if (const auto step = step_of(*param)) steps.emplace(weight.name, text_of(*step));
  }
  if (keys.empty()) {
    throw UsageError("--states: the checkpoint has no optimizer states of the written parameters");
  }
  for (const std::string& key : whole) {
    notes.push_back("the optimizer's state '" + key +
                    "' is not one value an element; it is left out");
  }
  std::vector<StateFiles> states;
  for (const std::string& key : keys) {
    check_key(checkpoint, key);
    const std::string stem = std::string(kStatesFolder) + "/" + key;
    const std::string index = stem + ".safetensors.index.json";
    WeightsFormat format = kSafetensors;
    format.stem = stem;
    format.index_name = index;
    states.push_back({key, split_weights(format, tensors_of(key, chosen), max_shard_size)});
    for (const WeightsSplit::File& file : states.back().split.files) lay_out(plan, file, steps);
    lay_out_index(plan, format, states.back().split);
  }
  return states;
}

}  // namespace dsckpt
