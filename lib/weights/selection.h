// Selects the tensors of a checkpoint that become weights, with their types and names.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "checkpoint/checkpoint.h"
#include "dsckpt/weights.h"
#include "weights/output_names.h"
#include "weights/weights_format.h"

namespace dsckpt {

// A parameter that is written, with its new name and type.
struct ChosenTensor {
  const Param* param;
  OutputTensor tensor;
  // The parameter, where it has a different name than in the checkpoint, or is made of others
  // (Param::saved_name).
  std::shared_ptr<const Param> made = {};
};

// The parameters that `options` choose, in the checkpoint's order, with their output names and
// types. With `hub`, they are these tensors, made of the chosen ones in their order; then the rules
// of --key-map rename them. Adds a note for each rule that fits none. Throws as plan_weights.
std::vector<ChosenTensor> choose_tensors(const Checkpoint& checkpoint,
                                         const WeightsOptions& options,
                                         std::vector<std::string>& notes,
                                         const HubTensors* hub = nullptr);
// The same with the names of WeightsOptions::names. A note says if these are not the module's, or
// if they are and could be others.
std::vector<ChosenTensor> choose_named_tensors(const Checkpoint& checkpoint,
                                               const WeightsOptions& options,
                                               std::vector<std::string>& notes);

// Those of Checkpoint::valueless() that `options` choose.
std::vector<std::string> choose_valueless(const Checkpoint& checkpoint,
                                          const WeightsOptions& options);

// Those of the incomplete parameters that `options` choose.
std::vector<IncompleteParam> choose_incomplete(const Checkpoint& checkpoint,
                                               const WeightsOptions& options);

}  // namespace dsckpt
