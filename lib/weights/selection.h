// Which tensors of a checkpoint become weights, as what type and under which names.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "checkpoint/checkpoint.h"
#include "checkpoint/names/hub_names.h"
#include "dsckpt/weights.h"
#include "weights/weights_format.h"

namespace dsckpt {

// A parameter that is written, and what of it.
struct ChosenTensor {
  const Param* param;
  OutputTensor tensor;
  // The parameter, where it has another name than in the checkpoint, or is made of others
  // (Param::saved_name).
  std::shared_ptr<const Param> made = {};
};

// The parameters that `options` choose, as they are to be called and of the type they are to have,
// in the checkpoint's order; with `hub` as its to_hub() makes them, and then as --key-map does.
// Adds a note for each rule of that that fits none. Throws as plan_weights and as HubNames::to_hub.
std::vector<ChosenTensor> choose_tensors(const Checkpoint& checkpoint,
                                         const WeightsOptions& options,
                                         std::vector<std::string>& notes,
                                         const HubNames* hub = nullptr);
// The same with the names that WeightsOptions::names asks for; a note says where these are not the
// module's, or that they are and could be others.
std::vector<ChosenTensor> choose_named_tensors(const Checkpoint& checkpoint,
                                               const WeightsOptions& options,
                                               std::vector<std::string>& notes);

// Of Checkpoint::valueless() those that `options` choose.
std::vector<std::string> choose_valueless(const Checkpoint& checkpoint,
                                          const WeightsOptions& options);

// Of the incomplete parameters those that `options` choose.
std::vector<IncompleteParam> choose_incomplete(const Checkpoint& checkpoint,
                                               const WeightsOptions& options);

}  // namespace dsckpt
