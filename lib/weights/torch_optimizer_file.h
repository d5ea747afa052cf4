// A file with the optimizer's state_dict beside the weights, for optimizer.load_state_dict. Source:
// torch/optim/optimizer.py state_dict, load_state_dict. The name is that of the Trainer
// (transformers/trainer.py OPTIMIZER_NAME).
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "checkpoint/checkpoint.h"
#include "plan/copy_plan.h"

namespace dsckpt {

inline constexpr std::string_view kTorchOptimizerFile = "optimizer.pt";

// Lays it out. Parameters are numbered group by group, in the order in which the optimizer got
// them; `param_names` has their names. Options that DeepSpeed's groups lack are torch's
// (hyper_parameters.h). Notes name the parts that are left out, and the numbers of groups and
// parameters that the program must build. Throws UsageError for weights alone. Throws
// UnsupportedError if the groups or the states' owners are unknown, and for states that ranks do
// not share.
void lay_out_torch_optimizer(PlanBuilder& plan, const Checkpoint& checkpoint,
                             std::vector<std::string>& notes);

}  // namespace dsckpt
