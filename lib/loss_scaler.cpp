#include "loss_scaler.h"

#include <algorithm>
#include <cmath>
#include <string_view>

namespace dsckpt {
using pickle::Document;
using pickle::Kind;
using pickle::Value;
namespace {

bool is_number(const Value& value) {
  return value.is(Kind::integer) || value.is(Kind::real);
}

}  // namespace

Value loss_scaler(Document& document, const Value& saved, const Value& config, bool dynamic) {
  const auto number = [&](std::string_view key, Value otherwise) {
    const Value value = saved.find_or_none(key);
    return is_number(value) ? value : otherwise;
  };
  const Value fp16 = config.find_or_none("fp16");
  const auto setting = [&](std::string_view key, Value otherwise) {
    const Value value = fp16.find_or_none(key);
    return value.is(otherwise.kind()) ? value : otherwise;
  };
  Value state = document.dict();
  const auto set = [&](std::string_view key, Value value) {
    document.set_item(state, document.intern(key), value);
  };
  set("cur_scale", number("cur_scale", Document::real(1.0)));
  set("dynamic", Document::boolean(dynamic));
  if (dynamic) {
    const Value hysteresis = setting("hysteresis", Document::integer(2));
    set("cur_iter", number("cur_iter", Document::integer(0)));
    set("last_overflow_iter", number("last_overflow_iter", Document::integer(-1)));
    set("scale_factor", number("scale_factor", Document::real(2.0)));
    set("scale_window",
        number("scale_window", setting("loss_scale_window", Document::integer(1000))));
    set("min_scale", setting("min_loss_scale", Document::integer(1)));
    set("delayed_shift", hysteresis);
    set("cur_hysteresis", hysteresis);
    set("consecutive_hysteresis", setting("consecutive_hysteresis", Document::boolean(false)));
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

Value initial_loss_scaler(Document& document, const Value& config) {
  const Value fp16 = config.find_or_none("fp16");
  const Value fixed = fp16.find_or_none("loss_scale");
  const Value power = fp16.find_or_none("initial_scale_power");
  const bool dynamic = !is_number(fixed) || fixed.as_real() == 0.0;
  const double scale =
      dynamic ? std::exp2(is_number(power) ? power.as_real() : 16.0) : fixed.as_real();
  const Value saved = document.dict();
  document.set_item(saved, document.intern("cur_scale"), Document::real(scale));
  return loss_scaler(document, saved, config, dynamic);
}

}  // namespace dsckpt
