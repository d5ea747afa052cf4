#include "reshard/state_dict_keys.h"

#include <algorithm>
#include <array>

#include "deepspeed/keys.h"
#include "reshard/torch_optimizer.h"

namespace dsckpt {
using pickle::Kind;
using pickle::Value;
namespace {

constexpr std::array kZeroWrappers{EngineWrapper::bf16_optimizer, EngineWrapper::zero12,
                                   EngineWrapper::zero3};

bool is_known(std::string_view key) {
  return std::any_of(kZeroWrappers.begin(), kZeroWrappers.end(), [&](EngineWrapper wrapper) {
    const auto known = state_dict_keys(wrapper);
    return std::any_of(known.begin(), known.end(),
                       [&](const DictKey& each) { return each.key == key; });
  });
}

std::optional<Value> optimizer_state_dict(const RankFile& file) {
  return wrapper_state_dict(file);
}

// For releases that do not have it in model-states files.
std::optional<Value> old_param_shapes(const RankFile& file) {
  if (!is_before(file.target().release, kParamShapesOfModel)) return std::nullopt;
  return param_shapes_value(file);
}

constexpr std::array kOptimFile{
    DictKey{keys::kOptimizerStateDict, optimizer_state_dict},
    DictKey{keys::kParamShapes, old_param_shapes},
    DictKey{keys::kDsConfig, ds_config_value},
    DictKey{keys::kDsVersion, ds_version_value},
};

}  // namespace

std::span<const DictKey> state_dict_keys(EngineWrapper wrapper) {
  switch (wrapper) {
    case EngineWrapper::plain:
      return torch_optimizer_keys();
    case EngineWrapper::fp16_unfused:
      return fp16_unfused_keys();
    case EngineWrapper::fp16_fused:
      return fp16_fused_keys();
    case EngineWrapper::bf16_optimizer:
      return bf16_optimizer_keys();
    case EngineWrapper::zero12:
      return zero12_keys();
    case EngineWrapper::zero3:
      return zero3_keys();
  }
  return {};
}

Value wrapper_state_dict(const RankFile& file) {
  const Value dict = dict_of(file, state_dict_keys(file.target().wrapper));
  const ShardValue& saved = file.from.wrapper;
  if (file.target().stage == 0 || !file.from.offer.keeps_unknown_state) return dict;
  for (const auto& [key, value] : saved.value.as_dict().items) {
    if (!key.is(Kind::string) || is_known(key.as_string())) continue;
    file.copy.set(dict, key.as_string(), file.copy.of(*saved.archive, value));
  }
  return dict;
}

std::span<const DictKey> optim_file_keys() {
  return kOptimFile;
}

}  // namespace dsckpt
