// The names that a module's tensors are written under (WeightsOptions::names).
#pragma once

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "checkpoint/checkpoint.h"
#include "checkpoint/names/hub_names.h"
#include "dsckpt/weights.h"
#include "weights/weights_format.h"

namespace dsckpt {

struct HubTensors {
  std::vector<RenamedTensor> tensors;
  bool stripped;  // WeightsOptions::strip_prefix was taken off before, not for afterwards
};

// `tensors` as the hub has them, by the model's config.json (config_text()); nullopt if they keep
// their names. If they are those of a wrapper, and behind strip_prefix those of the model, they are
// stripped first. A note says if they do not keep their names, or if they do and could have others.
// For TensorNames::hub, throws UsageError without a configuration, and UnsupportedError for a model
// or for tensors that no rule is known for.
std::optional<HubTensors> output_names(TensorNames names, const Checkpoint& checkpoint,
                                       const WeightsOptions& options,
                                       std::span<const ModelTensor> tensors,
                                       std::vector<std::string>& notes);

// The same for tensors that are ready to be written. Tensors that are made of tied ones only are
// tied, too.
std::vector<OutputTensor> with_output_names(TensorNames names, const Checkpoint& checkpoint,
                                            const WeightsOptions& options,
                                            std::vector<OutputTensor> tensors,
                                            std::vector<std::string>& notes);

}  // namespace dsckpt
