// The values of the loss scaler that wrappers save.
#pragma once

#include <optional>

#include "reshard/rank_file.h"

namespace dsckpt {

// Those of ZeRO: the scaler itself, the old one or one that is made.
std::optional<pickle::Value> loss_scaler_value(const RankFile& file);
std::optional<pickle::Value> dynamic_loss_scale_value(const RankFile& file);
std::optional<pickle::Value> overflow_value(const RankFile& file);

// Those of stage 0: the attributes of a newly made scaler. Its numbers are the old wrapper's, or
// the start values of a run of the new precision.
pickle::Value scaler_state(const RankFile& file);

}  // namespace dsckpt
