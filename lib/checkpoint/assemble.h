// From the ZeRO worlds of a checkpoint to the parameters of its model.
#pragma once

#include <vector>

#include "checkpoint/zero_world.h"

namespace dsckpt {

// Joins the worlds (by mp rank; facts.mesh says how they are arranged, pipeline stages outermost):
// pipeline stages have different parameters, or tied ones; tensor-parallel ranks have slices, which
// go together by the rules of universal_checkpoint_info; and expert-parallel ranks have different
// experts. Adds buffers, frozen parameters and aliases. Fills draft.params, facts.mesh.ep and
// draft.unused_patterns. Throws InconsistentError for slices that are missing or do not fit and
// UnsupportedError where there is no rule to say how they go together.
void assemble(CheckpointDraft& draft, std::vector<World>& worlds);

}  // namespace dsckpt
