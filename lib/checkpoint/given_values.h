// The values that a whole model was given, on the ranks that it is split over.
#pragma once

#include <cstdint>
#include <vector>

#include "checkpoint/checkpoint.h"

namespace dsckpt {

// Gives `params`, those of tensor-parallel rank `tp_rank` in its files, the values of `whole`: a
// checkpoint of the same model with other values (CheckpointFacts::values). The rules that join the
// slices of a parameter cut it (Param::cut). A mean is the same on every rank. The states and steps
// change if they are not those of the run. Throws UnsupportedError for a parameter whose cut no
// simple rule tells, and for a sum.
void give_values(std::vector<Param>& params, const Checkpoint& whole, uint32_t tp_rank);

// The facts of a world that has the values of a checkpoint with the facts `whole`.
void tell_values(CheckpointFacts& world, const CheckpointFacts& whole);

}  // namespace dsckpt
