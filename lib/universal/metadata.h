// The files of a universal checkpoint that belong to no single parameter.
//
// They are parts of the checkpoint's own pickles, copied and changed on the way. Their contents and
// the reasons: checkpoint/LAYOUTS.md, "Universal checkpoints".
#pragma once

#include "checkpoint/checkpoint.h"
#include "io/input_file.h"
#include "plan/copy_plan.h"

namespace dsckpt {

// zero/optimizer_state.pt: the global part of the optimizer that DeepSpeed's loader reads. Source:
// ds_to_universal.py _save_optimizer_state, _save_optimizer_state_stage3. Throws UnsupportedError
// if there is no optimizer.
void lay_out_optimizer_state(PlanBuilder& plan, const Checkpoint& checkpoint);

// The model-states file `file`, copied byte for byte with two exceptions. At stage 0 the optimizer
// is removed from it. With AutoEP its metadata goes to the place where the loader reads it.
void lay_out_model_states(PlanBuilder& plan, const InputFiles& inputs, const Checkpoint& checkpoint,
                          const CheckpointFile& file);

}  // namespace dsckpt
