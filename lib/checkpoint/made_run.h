// What a file of model states says of a run that has not saved one: engine.py _save_checkpoint.
#pragma once

#include <cstdint>
#include <vector>

#include "checkpoint/checkpoint.h"
#include "pickle/pickle.h"

namespace dsckpt {

// The names of the buffers among `params`, as a list.
pickle::Value buffer_names(pickle::Document& document, const std::vector<Param>& params);

// Puts what counts and says nothing of tensors into `dict`: no data sampler and no configuration,
// one rank, `global_steps` and no other steps or samples, the newest release that is known.
void set_counters(pickle::Document& document, pickle::Value dict, int64_t global_steps);

}  // namespace dsckpt
