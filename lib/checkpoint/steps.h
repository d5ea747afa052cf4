// Whether the files of a ZeRO checkpoint are of one save, by the steps that they hold.
#pragma once

#include <string_view>

#include "checkpoint/layout.h"
#include "checkpoint/shard.h"

namespace dsckpt {

// Compares what must be equal on all ranks of one step: step counts, loss scale, hyper-parameters
// (these among the data-parallel ranks of one mp rank). Where there are step counts,
// hyper-parameters that differ are only noted: ranks may have scheduled apart. `state_key` names
// the optimizer's state_dict within optimizer_state_dict. Throws InconsistentError that says which
// files are of which step; with draft.allow_missing, optimizer-states files of another step than
// the model-states file become lost instead.
//
// Then compares the optimizer's step with that of the model-states file (global_steps less
// skipped_steps). If they differ, a run in fp32 is refused, since nothing else tells of two saves
// that were mixed; unless the optimizer was started afresh, by its learning rates. In other runs,
// whose 16-bit weights `verify` compares with their masters, and with draft.allow_missing, it is a
// note.
void check_steps(CheckpointDraft& draft, std::string_view state_key);

}  // namespace dsckpt
