// The files of a universal checkpoint of weights, from which a run starts. Nothing was trained yet,
// and no optimizer is known.
//
// One folder serves stages 1, 2 and 3. Settings that a new engine knows better are absent. So
// hyper-parameters and loss scale stay the engine's own, and learning rate schedules start at the
// beginning. Source: engine.py _load_checkpoint; base_optimizer.py
// load_hp_checkpoint_state_from_checkpoint_dir; stage3.py
// load_hp_checkpoint_state_from_checkpoint_dir_stage3; lr_schedules.py load_state_dict.
#pragma once

#include <string>
#include <vector>

#include "checkpoint/checkpoint.h"
#include "plan/copy_plan.h"

namespace dsckpt {

// The optimizer states of a parameter before the new run's first step.
struct InitialStates {
  std::vector<std::string> keys{"exp_avg", "exp_avg_sq"};  // tensors of zeros
  // A step count of 0: a tensor for torch's optimizers, a number for DeepSpeed's own. Without it,
  // the optimizer creates the count itself, as it creates missing states.
  enum class Step { tensor, number, none } step = Step::tensor;
};

// The initial states of the optimizer of `like`, which is open with its states. None if it is not
// one of the Adams, whose states start as zeros.
InitialStates initial_states_like(const Checkpoint& like);

// zero/PARAM/step.pt; nothing if there is no step count.
void lay_out_initial_step(PlanBuilder& plan, const std::string& param, InitialStates::Step step);

// zero/optimizer_state.pt and the model-states files. Their step count is that of `weights`, if it
// is a checkpoint with one. The files of stages 1 and 2 have everything in `weights`, for readers
// other than DeepSpeed. Those of stage 3 have no tensors.
void lay_out_start(PlanBuilder& plan, const Checkpoint& weights, InitialStates::Step step);

}  // namespace dsckpt
