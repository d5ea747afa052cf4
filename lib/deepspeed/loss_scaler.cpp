#include "deepspeed/loss_scaler.h"

#include <cmath>
#include <string_view>

namespace dsckpt {
using pickle::Document;
using pickle::Kind;
using pickle::Value;

Value loss_scaler(Document& document, const Value& saved, const LossScaleConfig& config,
                  bool dynamic) {
  const auto number = [&](std::string_view key, Value otherwise) {
    const Value value = saved.find_or_none(key);
    return value.is(Kind::integer) || value.is(Kind::real) ? value : otherwise;
  };
  Value state = document.dict();
  const auto set = [&](std::string_view key, Value value) {
    document.set_item(state, document.intern(key), value);
  };
  set("cur_scale", number("cur_scale", Document::real(1.0)));
  set("dynamic", Document::boolean(dynamic));
  if (dynamic) {
    set("cur_iter", number("cur_iter", Document::integer(0)));
    set("last_overflow_iter", number("last_overflow_iter", Document::integer(-1)));
    set("scale_factor", number("scale_factor", Document::real(2.0)));
    set("scale_window", number("scale_window", Document::integer(config.loss_scale_window)));
    set("min_scale", Document::integer(config.min_loss_scale));
    set("delayed_shift", Document::integer(config.hysteresis));
    set("cur_hysteresis", Document::integer(config.hysteresis));
    set("consecutive_hysteresis", Document::boolean(config.consecutive_hysteresis));
    set("raise_error_at_min_scale", Document::boolean(true));
    set("dtype", document.global("torch", "float16"));
  }
  Value scaler = document.object(pickle::ObjectNode::Made::newobj,
                                 document.global("deepspeed.runtime.fp16.loss_scaler",
                                                 dynamic ? "DynamicLossScaler" : "LossScaler"),
                                 document.tuple({}));
  document.set_state(scaler, state);
  return scaler;
}

Value initial_loss_scaler(Document& document, const LossScaleConfig& config) {
  const double scale = config.is_dynamic()
                           ? std::exp2(static_cast<double>(config.initial_scale_power))
                           : config.loss_scale;
  const Value saved = document.dict();
  document.set_item(saved, document.intern("cur_scale"), Document::real(scale));
  return loss_scaler(document, saved, config, config.is_dynamic());
}

}  // namespace dsckpt
