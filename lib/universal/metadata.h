// The files of a universal checkpoint that are not of one parameter.
//
// They are copies of the checkpoint's own pickles, in parts and changed on the way. What is in them
// and why: checkpoint/LAYOUTS.md, "Universal checkpoints".
#pragma once

#include "checkpoint/checkpoint.h"
#include "io/input_file.h"
#include "plan/copy_plan.h"

namespace dsckpt {

// zero/optimizer_state.pt: what DeepSpeed's loader reads of the optimizer as a whole.
// ds_to_universal.py _save_optimizer_state, _save_optimizer_state_stage3. Throws UnsupportedError
// if there is no optimizer.
void lay_out_optimizer_state(PlanBuilder& plan, const Checkpoint& checkpoint);

// The model-states file `file`: byte for byte, but at stage 0, where the optimizer is taken out of
// it, and with AutoEP, whose metadata goes where the loader looks for it.
void lay_out_model_states(PlanBuilder& plan, const InputFiles& inputs, const Checkpoint& checkpoint,
                          const CheckpointFile& file);

}  // namespace dsckpt
