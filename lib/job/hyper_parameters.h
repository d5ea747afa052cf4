// The values that an optimizer keeps once for a group of parameters, as torch's optimizers have
// them.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <unordered_set>
#include <vector>

#include "checkpoint/checkpoint.h"
#include "dsckpt/error.h"
#include "format/torch_archive.h"

namespace dsckpt {

// Tells plain data: None, numbers, texts and bytes, and containers of these. Reading it runs
// nothing, and it means the same to whoever reads it.
class PlainData {
 public:
  // Linear in the size of the value. Containers that are not plain are remembered.
  bool is_plain(const pickle::Value& value);

 private:
  bool walk(const pickle::Value& value);
  bool walk_all(const pickle::Value& container);

  std::unordered_set<const void*> seen_;       // of the value
  std::unordered_set<const void*> not_plain_;  // of all values
};

// One option of a group: "lr".
struct HyperParameter {
  std::string key;
  std::function<pickle::Value(TorchArchiveWriter&)> value;  // for an archive of the output
};

// True if an optimizer with these states is an Adam.
bool is_adam(const std::vector<ParamState>& states);

// The error for callers that need the groups, if the files do not tell them.
UnsupportedError unknown_groups(const Checkpoint& checkpoint, const std::string& hint);

// The groups that a program has to build before it loads an optimizer: "2 groups of 16 and 9
// parameters". There must be at least one group.
std::string groups_text(const std::vector<ParamGroup>& groups);

// The learning rate that a group has, and the one that it began with (`initial_lr`).
struct GroupRates {
  double first = 0;
  double now = 0;
};
// 0 where the files do not tell.
GroupRates rates_of(const Checkpoint& checkpoint, const ParamGroup& group);

// The hyper-parameters of the checkpoint, but for `params`. `betas` is a tuple, and a tensor of one
// number is that number; `initial_lr` is added where the files have none. Then, with torch's
// defaults, the other keys of torch 2.13's optimizers: for an Adam also `amsgrad` and
// `decoupled_weight_decay`, as the configuration sets them. None if the files have none.
// Adds notes on values that are not plain data, and on behaviour that torch's optimizer does not
// share. `plain`: one for all groups. The checkpoint has to outlive the result.
std::vector<HyperParameter> hyper_parameters(const Checkpoint& checkpoint, const ParamGroup& group,
                                             bool adam, PlainData& plain,
                                             const std::function<void(std::string)>& note);

}  // namespace dsckpt
