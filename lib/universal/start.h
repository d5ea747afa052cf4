// The files of a universal checkpoint of weights, from which a run starts: nothing was trained, and
// no optimizer is known.
//
// One folder for stages 1, 2 and 3. It says nothing that a new engine knows better:
// hyper-parameters and loss scale stay the engine's own where the files have none, and learning
// rate schedules begin (engine.py _load_checkpoint, base_optimizer.py
// load_hp_checkpoint_state_from_checkpoint_dir, stage3.py
// load_hp_checkpoint_state_from_checkpoint_dir_stage3, lr_schedules.py load_state_dict).
#pragma once

#include <string>
#include <vector>

#include "checkpoint/checkpoint.h"
#include "plan/copy_plan.h"

namespace dsckpt {

// What the new run's optimizer keeps of a parameter before its first step.
struct InitialStates {
  std::vector<std::string> keys{"exp_avg", "exp_avg_sq"};  // tensors of zeros
  // A step count of 0: a tensor, as torch's optimizers have it, or a number, as DeepSpeed's own.
  // Without, the optimizer starts it itself, as it does with the states if it has none.
  enum class Step { tensor, number, none } step = Step::tensor;
};

// Those of the optimizer of `like`, open with its states; none if it is not one of the Adams, whose
// states start as zeros.
InitialStates initial_states_like(const Checkpoint& like);

// zero/PARAM/step.pt; nothing if there is no step count.
void lay_out_initial_step(PlanBuilder& plan, const std::string& param, InitialStates::Step step);

// zero/optimizer_state.pt and the model-states files, with as many steps as `weights` was made, if
// it is a checkpoint that was made any: of stages 1 and 2 with everything that `weights` has, for
// whoever reads the folder but DeepSpeed, and of stage 3 without tensors.
void lay_out_start(PlanBuilder& plan, const Checkpoint& weights, InitialStates::Step step);

}  // namespace dsckpt
