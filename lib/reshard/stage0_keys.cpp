// Stage 0 in 16 bits: FP16_Optimizer (fp16/fused_optimizer.py) and FP16_UnfusedOptimizer
// (fp16/unfused_optimizer.py). They save only those numbers of the loss scaler that change.
#include <array>
#include <utility>

#include "deepspeed/keys.h"
#include "reshard/loss_scale_values.h"
#include "reshard/state_dict_keys.h"
#include "reshard/torch_optimizer.h"

namespace dsckpt {
using pickle::Document;
using pickle::Value;
namespace {

using Run = ReshardLayout::Run;
using MakeValue = std::optional<Value> (*)(const RankFile&);

// --- the loss scale

std::optional<Value> dynamic_loss_scale(const RankFile& file) {
  return Document::boolean(scaler_state(file).at("dynamic").is_true());
}

std::optional<Value> cur_scale(const RankFile& file) {
  return scaler_state(file).at("cur_scale");
}

std::optional<Value> cur_iter(const RankFile& file) {
  const Value scaler = scaler_state(file);
  if (scaler.at("dynamic").is_true()) return scaler.at("cur_iter");
  return Document::integer(file.from.checkpoint.facts().global_steps.value_or(0));
}

std::optional<Value> if_dynamic(const RankFile& file, std::string_view key) {
  const Value scaler = scaler_state(file);
  return scaler.at("dynamic").is_true() ? std::optional(scaler.at(key)) : std::nullopt;
}

std::optional<Value> last_overflow_iter(const RankFile& file) {
  return if_dynamic(file, "last_overflow_iter");
}

std::optional<Value> scale_factor(const RankFile& file) {
  return if_dynamic(file, "scale_factor");
}

std::optional<Value> scale_window(const RankFile& file) {
  return if_dynamic(file, "scale_window");
}

// FP16_Optimizer has a loss scale in fp16 alone.
template <MakeValue kMake>
std::optional<Value> in_fp16(const RankFile& file) {
  return file.target().precision == Precision::fp16 ? kMake(file) : std::nullopt;
}

// --- the masters

// One tensor a group; None of a group without parameters.
std::optional<Value> fp32_groups_flat(const RankFile& file) {
  std::vector<Value> groups(file.layout().groups().size());
  for (const Run& run : file.layout().runs()) {
    groups[run.group] = masters(file, file.layout().of_run(run, 0, master_of));
  }
  return file.document().list(std::move(groups));
}

// A list of one tensor a parameter.
std::optional<Value> fp32_groups(const RankFile& file) {
  std::vector<std::vector<Value>> tensors(file.layout().groups().size());
  for (const Run& run : file.layout().runs()) {
    tensors[run.group].push_back(masters(file, file.layout().of_run(run, 0, master_of)));
  }
  std::vector<Value> groups;
  for (auto& group : tensors) groups.push_back(file.document().list(std::move(group)));
  return file.document().list(std::move(groups));
}

constexpr std::array kFused{
    DictKey{keys::kDynamicLossScale, in_fp16<dynamic_loss_scale>},
    DictKey{"cur_scale", in_fp16<cur_scale>},
    DictKey{"cur_iter", in_fp16<cur_iter>},
    DictKey{"last_overflow_iter", in_fp16<last_overflow_iter>},
    DictKey{"scale_factor", in_fp16<scale_factor>},
    DictKey{"scale_window", in_fp16<scale_window>},
    DictKey{keys::kOptimizerStateDict, torch_optimizer},
    DictKey{keys::kFp32GroupsFlat, fp32_groups_flat},
    DictKey{keys::kClipGrad, clip_grad_value},
};

constexpr std::array kUnfused{
    DictKey{keys::kDynamicLossScale, dynamic_loss_scale},
    DictKey{"cur_scale", cur_scale},
    DictKey{"cur_iter", cur_iter},
    DictKey{"last_overflow_iter", last_overflow_iter},
    DictKey{"scale_factor", scale_factor},
    DictKey{"scale_window", scale_window},
    DictKey{keys::kOptimizerStateDict, torch_optimizer},
    DictKey{keys::kFp32Groups, fp32_groups},
};

}  // namespace

std::span<const DictKey> fp16_fused_keys() {
  return kFused;
}

std::span<const DictKey> fp16_unfused_keys() {
  return kUnfused;
}

}  // namespace dsckpt
