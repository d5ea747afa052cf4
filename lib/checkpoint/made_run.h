// The contents of a model-states file for a run that has not saved one: engine.py _save_checkpoint.
#pragma once

#include <cstdint>
#include <vector>

#include "checkpoint/checkpoint.h"
#include "pickle/pickle.h"

namespace dsckpt {

// The names of the buffers among `params`, as a list.
pickle::Value buffer_names(pickle::Document& document, const std::vector<Param>& params);

// Puts the counters and other facts, but no tensors, into `dict`. There is no data sampler, no
// configuration and one rank. Steps are `global_steps`, with no other steps or samples; the release
// is the newest known.
void set_counters(pickle::Document& document, pickle::Value dict, int64_t global_steps);

}  // namespace dsckpt
