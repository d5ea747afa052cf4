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
  std::vector<WholeState> others;
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

}  // namespace dsckpt
