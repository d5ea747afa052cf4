// What wrappers save of the loss scaler.
#pragma once

#include <optional>

#include "reshard/rank_file.h"

namespace dsckpt {

// Those of ZeRO: the scaler itself, the old one or one that is made.
std::optional<pickle::Value> loss_scaler_value(const RankFile& file);
std::optional<pickle::Value> dynamic_loss_scale_value(const RankFile& file);
std::optional<pickle::Value> overflow_value(const RankFile& file);

// Those of stage 0: the attributes of one that is made, with the numbers that the old wrapper has,
// or that a run of the new precision starts with.
pickle::Value scaler_state(const RankFile& file);

}  // namespace dsckpt
