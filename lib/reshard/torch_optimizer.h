// torch.optim.Optimizer.state_dict, as the wrappers of the engine have it inside of theirs, and at
// stage 0 in fp32 nothing around it.
#pragma once

#include <optional>
#include <span>

#include "reshard/rank_file.h"

namespace dsckpt {

// Keys: the states of all runs, and the hyper-parameters. UnsupportedError for groups without.
std::span<const DictKey> torch_optimizer_keys();
std::optional<pickle::Value> torch_optimizer(const RankFile& file);

// The states of one run: what the state_dict has under its number.
pickle::Value states_of(const RankFile& file, const ReshardLayout::Run& run);

}  // namespace dsckpt
