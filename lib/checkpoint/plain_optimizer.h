// The optimizer of a run without ZeRO, whose file does not assign its tensors to parameters.
// Masters are recognised by the 16-bit copies that they round to, states by the order of the
// parameters. Source: deepspeed/runtime/fp16/unfused_optimizer.py (fp32_groups), fused_optimizer.py
// (fp32_groups_flat), torch/optim/optimizer.py state_dict.
#pragma once

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "checkpoint/layout.h"
#include "checkpoint/shard.h"
#include "checkpoint/zero_world.h"

namespace dsckpt {

struct PlainOptimizer {
  std::vector<OwnedParam> owned;  // in the order of the parameters that were given
  FrozenParams frozen;
  std::vector<ParamGroup> groups;  // empty if the states are not wanted or not assigned
  // As in CheckpointFacts.
  bool frozen_known = true;
  bool states_assigned = true;
};

// Finds the `params` that belong to `optimizer`, a dict of `shard`. Takes as `params` the tensors
// of the model that are not buffers, in the model's order. Groups may be marked as those of
// experts, which `is_expert` tells. Without an optimizer all are taken to be trained. Reads states
// only if `draft` wants them. Sets facts.optimizer_wrapper and adds notes. Throws InconsistentError
// for a master that no parameter is the rounding of.
PlainOptimizer read_plain_optimizer(CheckpointDraft& draft, const Shard& shard,
                                    const Fields* optimizer,
                                    const std::vector<std::pair<std::string, TensorSource>>& params,
                                    const std::function<bool(const std::string&)>& is_expert = {});

}  // namespace dsckpt
