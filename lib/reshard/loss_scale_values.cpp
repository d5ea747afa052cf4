#include "reshard/loss_scale_values.h"

#include "deepspeed/keys.h"
#include "deepspeed/loss_scaler.h"

namespace dsckpt {
using pickle::Document;
using pickle::Kind;
using pickle::Value;
namespace {

Value saved_scaler(const RankFile& file) {
  return file.from.wrapper.value.find_or_none(keys::kLossScaler);
}

bool keeps_scaler(const RankFile& file) {
  // A scaler is pickled with its attributes, and those of another release are others.
  return !file.target().new_loss_scaler && !saved_scaler(file).is_none() &&
         file.target().ds_version.empty();
}

// One that is not copied as it is.
Value made_scaler(const RankFile& file) {
  const LossScaleConfig& config = file.target().engine.loss_scale;
  Document& document = file.document();
  if (file.target().new_loss_scaler) {
    return file.target().precision == Precision::fp16 ? initial_loss_scaler(document, config)
                                                      : loss_scaler(document, {}, config, false);
  }
  const Value saved = saved_scaler(file);
  const Value numbers = saved.is(Kind::object) ? saved.as_object().state : file.from.wrapper.value;
  const bool dynamic = numbers.find_or_none(keys::kDynamicLossScale).is_true() ||
                       numbers.find_or_none("dynamic").is_true();
  return loss_scaler(document, numbers, config, dynamic);
}

}  // namespace

Value scaler_state(const RankFile& file) {
  return made_scaler(file).as_object().state;
}

std::optional<Value> loss_scaler_value(const RankFile& file) {
  return keeps_scaler(file) ? carried(file, keys::kLossScaler) : made_scaler(file);
}

std::optional<Value> dynamic_loss_scale_value(const RankFile& file) {
  if (!keeps_scaler(file)) return Document::boolean(scaler_state(file).at("dynamic").is_true());
  if (auto saved = carried(file, keys::kDynamicLossScale)) return saved;
  const Value scaler = saved_scaler(file);
  return Document::boolean(scaler.is(Kind::object) &&
                           scaler.as_object().state.find_or_none("dynamic").is_true());
}

std::optional<Value> overflow_value(const RankFile& file) {
  if (keeps_scaler(file)) {
    if (auto saved = carried(file, keys::kOverflow)) return saved;
  }
  return Document::boolean(false);
}

}  // namespace dsckpt
