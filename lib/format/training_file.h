// A file in which a program keeps a whole training: the model's state_dict, the optimizer's, and
// what else it wants back, under keys of its own. torch's tutorials, Lightning's .ckpt files.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "pickle/pickle.h"

namespace dsckpt {

// A dict under a key of the root; "" and the root itself for what is that alone.
struct KeyedDict {
  std::string key;
  pickle::Value dict;
};

struct TrainingFile {
  // state_dicts of models: dicts of tensors.
  std::vector<KeyedDict> models = {};
  // torch.optim.Optimizer.state_dict(): dicts with `state` and `param_groups`.
  std::vector<KeyedDict> optimizers = {};
  std::optional<int64_t> step = {};  // of "global_step" and the like
};

// What the root of an archive holds, by its content; nothing of what is no dict. A file of weights
// is one model with the key "".
TrainingFile training_file(const pickle::Value& root);

// What an optimizer's state_dict calls a parameter, in `state` and in a group: its name or number.
std::string optimizer_key(const pickle::Value& key);

// What a file of a ZeRO checkpoint is, by its keys and whatever its name is: "model states",
// "optimizer states", "a parameter of a universal checkpoint"; "" for anything else.
std::string_view shard_by_keys(const pickle::Value& root);

}  // namespace dsckpt
