// One file with the optimizer's state_dict beside the weights, which optimizer.load_state_dict
// takes. Source: torch/optim/optimizer.py state_dict, load_state_dict; the name is the Trainer's
// (transformers/trainer.py OPTIMIZER_NAME).
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "checkpoint/checkpoint.h"
#include "plan/copy_plan.h"

namespace dsckpt {

inline constexpr std::string_view kTorchOptimizerFile = "optimizer.pt";

// Lays it out. Parameters are numbered group by group, in the order in which the optimizer was
// given them, and `param_names` has their names; options that DeepSpeed's groups do not have are
// torch's (hyper_parameters.h). Notes say what is left out, and how many groups of how many
// parameters the program has to build. Throws UsageError for weights alone; UnsupportedError where
// the groups or the states' owners are not known, and for states that ranks do not share.
void lay_out_torch_optimizer(PlanBuilder& plan, const Checkpoint& checkpoint,
                             std::vector<std::string>& notes);

}  // namespace dsckpt
