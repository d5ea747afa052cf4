// ZeRO worlds: the ranks that cut one set of parameters between them.
//
// Without model parallelism a checkpoint is one world. With it, every pipeline stage and
// tensor-parallel rank is a world of its own, whose files carry its number as mp_rank. Parameters
// of experts are cut over a part of a world's ranks.
#pragma once

#include <cstdint>
#include <deque>
#include <exception>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "checkpoint/checkpoint.h"
#include "checkpoint/frozen_params.h"
#include "checkpoint/layout.h"
#include "checkpoint/model_states.h"
#include "checkpoint/offloaded.h"

namespace dsckpt {

// A parameter that an optimizer owns, put together from the ranks that share it.
struct OwnedParam {
  std::string name;
  Shape shape;
  TensorSource master;
  bool requires_grad = false;
  std::vector<ParamState> states = {};  // only with OpenOptions::optimizer_states
  ShardValue step = {};
  SharedList<WholeState> others = {};
  // The expert-parallel rank whose local experts it holds, of how many; 0 of 1 for what all ranks
  // share.
  uint32_t ep_rank = 0;
  uint32_t ep_size = 1;
};

// One world, read.
struct World {
  const ModelStates* model;  // of its first data-parallel rank
  std::vector<OwnedParam> owned;
  FrozenParams frozen;  // in the model's order; those of pipelines are in the layers
  // The optimizer's, with the names of `owned`; empty where the files do not tell. Only with
  // OpenOptions::optimizer_states.
  std::vector<ParamGroup> groups = {};
  // Facts from its own files, as Checkpoint::facts() and wrapper_state(). Only for native shards
  // and universal checkpoints.
  CheckpointFacts facts = {};
  ShardValue wrapper_state = {};
  // A parameter that is missing in `owned`, since only its whole value is there and no rule cuts
  // it. "" if there is none.
  std::string uncut = {};
};

// The worlds of a model that is split, by mp rank, with what they borrow.
struct Worlds {
  std::deque<ModelStates> models;
  std::vector<World> all;
  // Why there are none, as Checkpoint::world() then throws it; nullptr if they are there.
  std::exception_ptr lost = nullptr;
};

// Keeps a copy of `worlds` for Checkpoint::world(), and with it `models`, which they borrow, if the
// model is split over ranks or files. Does nothing if it is not.
void keep_worlds(CheckpointDraft& draft, std::deque<ModelStates>& models,
                 const std::vector<World>& worlds);

// The part of each sub-group that a rank of stage 3 holds, one of `ranks`.
std::vector<SubGroupSize> sub_group_sizes(const ModelStates& model, const Shard& optim,
                                          size_t ranks);

// Finds draft.valueless, with a note on each: entries of `module` at stage 3 that are placeholders,
// neither owned nor frozen nor tied. Old releases lose frozen parameters so.
void find_valueless(const World& world, CheckpointDraft& draft);

// The parameter groups of stages 1 and 2: those of param_shapes. Each was ordered by
// round_robin_gradients for its number in `ranks` (1: it was not). The `settings` are the entries
// of param_groups, if any, in `archive`.
std::vector<ParamGroup> flat_param_groups(const ModelStates& model, std::span<const uint32_t> ranks,
                                          const TorchArchive& archive,
                                          std::span<const pickle::Value> settings);

// Those of stage 3: each lists its sub-groups, which stand one after the other in param_shapes.
// `wrapper` is optimizer_state_dict. None if its sub-groups are not those of param_shapes.
std::vector<ParamGroup> sub_group_param_groups(const ModelStates& model, const Fields& wrapper);

}  // namespace dsckpt
