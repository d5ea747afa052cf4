// The use cases: from an open checkpoint to a plan, and from a plan to files.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "checkpoint/checkpoint.h"
#include "job/run_plan.h"
#include "output/weights_format.h"
#include "plan/copy_plan.h"

namespace dsckpt {

struct WeightsOptions {
  const WeightsFormat* format = &kTorchBin;
  // What floating tensors become; nullopt leaves each as it is stored (masters are fp32).
  std::optional<DType> dtype = DType::float32;
  uint64_t max_shard_size = 5'000'000'000;
  bool exclude_frozen_parameters = false;
  // RE2 patterns, searched in the names the checkpoint has. With `include`, only what one of them
  // finds is written; what one of `exclude` finds is not.
  std::vector<std::string> include;
  std::vector<std::string> exclude;
  // Floating tensors found by one of these become float32 whatever `dtype` says.
  std::vector<std::string> keep_fp32;
  // Taken from the front of names that have it; the first that fits, once.
  std::vector<std::string> strip_prefix;
  // Renames what is left then (KeyMap::read).
  std::filesystem::path key_map;
  // Write what the optimizer keeps of the parameters too (state_files.h).
  bool states = false;
  // A Hugging Face model folder whose configuration and tokenizer files are copied along.
  std::filesystem::path hf_config;
};

// `name` without the first of `prefixes` that it begins with, if more than that is left.
std::string without_prefix(const std::string& name, const std::vector<std::string>& prefixes);

// A parameter that is written, and what of it.
struct ChosenTensor {
  const Param* param;
  OutputTensor tensor;
};

// The parameters that `options` choose, as they are to be called and of the type they are to have,
// in the checkpoint's order. Adds a note for each rule of
// --key-map that fits none. Throws as plan_weights.
std::vector<ChosenTensor> choose_tensors(const Checkpoint& checkpoint,
                                         const WeightsOptions& options,
                                         std::vector<std::string>& notes);
// Of the incomplete parameters those that `options` choose.
std::vector<IncompleteParam> choose_incomplete(const Checkpoint& checkpoint,
                                               const WeightsOptions& options);

struct WeightsPlan {
  CopyPlan plan;
  WeightsSplit split;
  std::vector<std::string> notes;
  // The optimizer's states, if asked for: each as files of its own.
  struct State {
    std::string key;
    WeightsSplit split;
  };
  std::vector<State> states = {};
  // What would be there if no file were lost.
  std::vector<IncompleteParam> incomplete = {};
};

// Plans the weights of `checkpoint` as files of `options.format`; the result is valid against
// `inputs`. Equals what zero_to_fp32.py writes where that is right; frozen parameters of stage 1
// are there too. Throws UsageError for bad patterns, names that collide and an empty selection,
// UnsupportedError for tensors the format cannot hold.
WeightsPlan plan_weights(InputFiles& inputs, const Checkpoint& checkpoint,
                         const WeightsOptions& options);

// Files of weights in `output` that the plan does not write, by name: whoever loads the folder may
// take them for the new ones.
std::vector<std::string> other_weights(const CopyPlan& plan, const std::filesystem::path& output);

}  // namespace dsckpt
