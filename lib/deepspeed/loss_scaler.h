// DeepSpeed's loss scalers, as their pickles have them.
#pragma once

#include "deepspeed/engine_config.h"
#include "pickle/pickle.h"

namespace dsckpt {

// A deepspeed.runtime.fp16.loss_scaler.LossScaler, or with `dynamic` a DynamicLossScaler. `saved`
// may have the numbers that change (cur_scale, cur_iter, last_overflow_iter, scale_factor,
// scale_window); it may be None and of any document.
pickle::Value loss_scaler(pickle::Document& document, const pickle::Value& saved,
                          const LossScaleConfig& config, bool dynamic);

// The one that a run of fp16 starts with: dynamic unless fp16.loss_scale is set.
pickle::Value initial_loss_scaler(pickle::Document& document, const LossScaleConfig& config);

}  // namespace dsckpt
