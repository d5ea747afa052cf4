// DeepSpeed's loss scalers, in their pickled form.
#pragma once

#include "deepspeed/engine_config.h"
#include "pickle/pickle.h"

namespace dsckpt {

// A deepspeed.runtime.fp16.loss_scaler.LossScaler, or with `dynamic` a DynamicLossScaler. The
// numbers that change come from `saved`: cur_scale, cur_iter, last_overflow_iter, scale_factor,
// scale_window. It may be None, and of any document.
pickle::Value loss_scaler(pickle::Document& document, const pickle::Value& saved,
                          const LossScaleConfig& config, bool dynamic);

// The loss scaler that an fp16 run starts with: dynamic unless fp16.loss_scale is set.
pickle::Value initial_loss_scaler(pickle::Document& document, const LossScaleConfig& config);

}  // namespace dsckpt
