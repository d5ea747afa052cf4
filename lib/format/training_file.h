// A file with a whole training: the state_dicts of model and optimizer, and other values, under
// keys of the program's own. torch's tutorials write such files, and so does Lightning (.ckpt).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "pickle/pickle.h"

namespace dsckpt {

// A dict under a key of the root; or the root itself, with "" as the key, if it is the only dict.
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

// The parts of an archive's root, found by content; empty if it is not a dict. A file of weights is
// one model with the key "".
TrainingFile training_file(const pickle::Value& root);

// The key of a parameter in an optimizer's state_dict, in `state` and in a group: a name or number.
std::string optimizer_key(const pickle::Value& key);

// The kind of a ZeRO checkpoint's file, by its keys, whatever its name. It is "model states",
// "optimizer states", "a parameter of a universal checkpoint", or "" for anything else.
std::string_view shard_by_keys(const pickle::Value& root);

}  // namespace dsckpt
