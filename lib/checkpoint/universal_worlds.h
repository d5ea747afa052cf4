// The ranks that the model of a universal checkpoint was split over: how they shared its whole
// parameters. The model-states files of these ranks say it.
#pragma once

#include <functional>
#include <vector>

#include "checkpoint/checkpoint.h"
#include "checkpoint/layout.h"
#include "checkpoint/model_states.h"

namespace dsckpt {

// The parameter groups of the rank whose file it is.
using GroupsOfRank = std::function<std::vector<ParamGroup>(const ModelStates& model)>;

// Fills in Param::cut, the padding of vocabularies (zeros, as DeepSpeed's loader makes it),
// draft.groups and draft.worlds, and keeps `models` there. The draft has all parameters. Does
// nothing for models with experts. Nor does it where the files do not tell the trained parameters
// of a rank: at stage 0, and if tensor-parallel ranks have different ones. Whole parameters need no
// rules. If these cannot be read, or do not make a parameter of the ranks' slices, the parameters
// stay as they are. Then the error is in Worlds::lost. A defect is also a note, and among
// draft.doubts. Throws UsageError for OpenOptions::tp_rules that do not fit.
void find_worlds(CheckpointDraft& draft, RankModels& models, const GroupsOfRank& groups_of);

}  // namespace dsckpt
