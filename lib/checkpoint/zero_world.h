// ZeRO worlds: the ranks that cut one set of parameters between them.
//
// Without model parallelism a checkpoint is one world. With it, every pipeline stage and
// tensor-parallel rank is a world of its own, whose files carry its number as mp_rank; parameters
// of experts are cut over a part of a world's ranks.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "checkpoint/checkpoint.h"
#include "checkpoint/layout.h"
#include "checkpoint/model_states.h"

namespace dsckpt {

// A parameter that an optimizer owns, put together from the ranks that share it.
struct OwnedParam {
  std::string name;
  Shape shape;
  TensorSource master;
  bool requires_grad = false;
  std::vector<ParamState> states;  // only with OpenOptions::optimizer_states
  ShardValue step;
  // The expert-parallel rank whose local experts it holds, of how many; 0 of 1 for what all ranks
  // share.
  uint32_t ep_rank = 0;
  uint32_t ep_size = 1;
};

// One world, read.
struct World {
  const ModelStates* model;  // of its first data-parallel rank
  std::vector<OwnedParam> owned;
  // Parameters that no optimizer owns, in the model's order.
  std::vector<std::pair<std::string, TensorSource>> frozen;
};

// Stages 1 and 2. `model` is the world's model-states file, `optim` its optimizer-states files by
// data-parallel rank. Accounts for every element of every rank's flat groups. Notes are added to
// `notes`. Throws as Checkpoint::open.
std::vector<OwnedParam> read_zero12_world(const ModelStates& model,
                                          const std::vector<const Shard*>& optim,
                                          bool optimizer_states, std::vector<std::string>& notes);

// Stage 3. `models` and `optim` are the files of the world's ranks.
std::vector<OwnedParam> read_zero3_world(const std::vector<const ModelStates*>& models,
                                         const std::vector<const Shard*>& optim,
                                         bool optimizer_states, std::vector<std::string>& notes);

}  // namespace dsckpt
