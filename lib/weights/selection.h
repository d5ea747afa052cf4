// Which tensors of a checkpoint become weights, as what type and under which names.
#pragma once

#include <string>
#include <vector>

#include "checkpoint/checkpoint.h"
#include "dsckpt/weights.h"
#include "weights/weights_format.h"

namespace dsckpt {

// A parameter that is written, and what of it.
struct ChosenTensor {
  const Param* param;
  OutputTensor tensor;
};

// The parameters that `options` choose, as they are to be called and of the type they are to have,
// in the checkpoint's order. Adds a note for each rule of --key-map that fits none. Throws as
// plan_weights.
std::vector<ChosenTensor> choose_tensors(const Checkpoint& checkpoint,
                                         const WeightsOptions& options,
                                         std::vector<std::string>& notes);

// Of Checkpoint::valueless() those that `options` choose.
std::vector<std::string> choose_valueless(const Checkpoint& checkpoint,
                                          const WeightsOptions& options);

// Of the incomplete parameters those that `options` choose.
std::vector<IncompleteParam> choose_incomplete(const Checkpoint& checkpoint,
                                               const WeightsOptions& options);

}  // namespace dsckpt
