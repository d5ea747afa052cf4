// Another set of parameters: some become trained or frozen, some come or go, and the vocabulary has
// other rows. One pass over the parameters makes all five changes.
#pragma once

#include "checkpoint/checkpoint.h"
#include "checkpoint/layout.h"
#include "dsckpt/checkpoint.h"

namespace dsckpt {

// The reader of Checkpoint::changed_set: params, groups, weights and notes. Notes tell what
// each change costs and which groups parameters go to. The other arguments are those of
// Checkpoint::changed_set.
void read_changed_set(CheckpointDraft& draft, const Checkpoint& base, const SetChange& change,
                      const WeightNames& names, const std::vector<std::string>& order,
                      const Checkpoint* like);

}  // namespace dsckpt
