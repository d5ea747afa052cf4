// Checks that the files of a ZeRO checkpoint are from one save, by the steps that they hold.
#pragma once

#include <string_view>

#include "checkpoint/layout.h"
#include "checkpoint/shard.h"

namespace dsckpt {

// Compares the values that must be equal on all ranks of one step: step counts, loss scale,
// hyper-parameters. Hyper-parameters are compared among the data-parallel ranks of one mp rank. If
// there are step counts, different hyper-parameters are only noted: ranks may have scheduled apart.
// The optimizer's state_dict is at `state_key` within optimizer_state_dict. Throws
// InconsistentError that says which files are from which step. With draft.options.allow_missing,
// optimizer-states files from a different step than the model-states file become lost instead.
//
// Then compares the optimizer's step with that of the model-states file (global_steps less
// skipped_steps). If they differ, a run in fp32 is refused, since nothing else reveals two mixed
// saves. It is accepted if the optimizer was started afresh, by its learning rates. In other runs,
// whose 16-bit weights `verify` compares with their masters, and with draft.options.allow_missing,
// it is a note.
void check_steps(CheckpointDraft& draft, std::string_view state_key);

}  // namespace dsckpt
