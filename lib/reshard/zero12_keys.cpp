// Stages 1 and 2: DeepSpeedZeroOptimizer (stage_1_and_2.py) and BF16_Optimizer (bf16_optimizer.py).
#include <array>
#include <utility>

#include "deepspeed/keys.h"
#include "pickle/python_objects.h"
#include "reshard/loss_scale_values.h"
#include "reshard/state_dict_keys.h"
#include "reshard/torch_optimizer.h"

namespace dsckpt {
using pickle::Document;
using pickle::ObjectNode;
using pickle::Value;
namespace {

using Group = ReshardLayout::Group;

// A list of what `make` makes of each group.
template <typename F>
Value of_groups(const RankFile& file, F&& make) {
  std::vector<Value> values;
  for (const Group& group : file.layout().groups()) values.push_back(make(group));
  return file.document().list(std::move(values));
}

Value number(uint64_t value) {
  return Document::integer(static_cast<int64_t>(value));
}

// Elastic files have the states without numbers and hyper-parameters.
std::optional<Value> base_optimizer_state(const RankFile& file) {
  if (!file.target().elastic) return torch_optimizer(file);
  std::vector<Value> states;
  for (const ReshardLayout::Run& run : file.layout().runs()) {
    states.push_back(states_of(file, run));
  }
  return file.document().list(std::move(states));
}

std::optional<Value> base_optimizer_state_step(const RankFile& file) {
  return file.target().elastic ? carried(file, keys::kBaseOptimizerStateStep) : std::nullopt;
}

// DeepSpeedZeroOptimizer cuts the padding off the masters, BF16_Optimizer does not.
std::optional<Value> real_masters(const RankFile& file) {
  return of_groups(file, [&](const Group& group) {
    return masters(file, file.layout().partition(group, file.rank, false, master_of));
  });
}

// Before group_paddings was saved, only the last rank's padding to a multiple of the ranks was cut
// off. A vector is padded to twice as many.
std::optional<Value> masters_before_paddings(const RankFile& file) {
  return of_groups(file, [&](const Group& group) {
    TensorSource values = file.layout().partition(group, file.rank, true, master_of);
    const uint64_t ranks = group.mesh.edp();
    if (group.mesh.edp_rank(file.rank) + 1 == ranks) {
      const uint64_t cut = (ranks - group.flat.used % ranks) % ranks;
      values = values.narrow(0, 0, values.numel() - static_cast<int64_t>(cut));
    }
    return masters(file, std::move(values));
  });
}

std::optional<Value> masters_of_zero12(const RankFile& file) {
  const bool before = is_before(file.target().release, kGroupPaddingsSaved);
  return before && !file.target().elastic ? masters_before_paddings(file) : real_masters(file);
}

std::optional<Value> padded_masters(const RankFile& file) {
  return of_groups(file, [&](const Group& group) {
    return masters(file, file.layout().partition(group, file.rank, true, master_of));
  });
}

std::optional<Value> group_paddings(const RankFile& file) {
  return of_groups(file, [&](const Group& group) {
    return number(group.flat.partition - file.layout().real_part(group, file.rank));
  });
}

// BF16_Optimizer books all padding on the last rank.
std::optional<Value> paddings_of_last(const RankFile& file) {
  return of_groups(file, [&](const Group& group) {
    const uint64_t ranks = group.mesh.edp();
    const bool is_last = group.mesh.edp_rank(file.rank) + 1 == ranks;
    return number(is_last ? group.flat.partition * ranks - group.flat.used : 0);
  });
}

std::optional<Value> param_alignment_paddings(const RankFile& file) {
  return of_groups(
      file, [&](const Group& group) { return integers(file.document(), group.flat.paddings); });
}

std::optional<Value> partition_count(const RankFile& file) {
  return of_groups(file, [](const Group& group) { return number(group.mesh.edp()); });
}

// fragment_address, by its module in the release.
Value fragment_address(const RankFile& file, const ReshardLayout::Slice& slice) {
  Document& document = file.document();
  const char* module = is_before(file.target().release, kTensorFragment)
                           ? "deepspeed.runtime.bf16_optimizer"
                           : "deepspeed.utils.tensor_fragment";
  const Value state = document.dict();
  document.set_item(state, document.intern("numel"), number(slice.numel));
  document.set_item(state, document.intern("start"), number(slice.start));
  const Value address = document.object(
      ObjectNode::Made::newobj, document.global(module, "fragment_address"), document.tuple({}));
  document.set_state(address, state);
  return address;
}

// Parameter -> where it lies in the rank's partition.
std::optional<Value> param_slice_mappings(const RankFile& file) {
  Document& document = file.document();
  return of_groups(file, [&](const Group& group) {
    const Value mapping = ordered_dict(document);
    for (const ReshardLayout::Slice& slice : file.layout().slices(group, file.rank)) {
      document.set_item(mapping, document.intern(slice.param->name), fragment_address(file, slice));
    }
    return mapping;
  });
}

constexpr std::array kZero12Keys{
    DictKey{keys::kLossScaler, loss_scaler_value},
    DictKey{keys::kDynamicLossScale, dynamic_loss_scale_value},
    DictKey{keys::kOverflow, overflow_value},
    DictKey{keys::kClipGrad, clip_grad_value},
    DictKey{keys::kBaseOptimizerState, base_optimizer_state},
    DictKey{keys::kBaseOptimizerStateStep, base_optimizer_state_step},
    DictKey{keys::kSingleFp32Partition, masters_of_zero12},
    DictKey{keys::kZeroStage, zero_stage_value},
    DictKey{keys::kGroupPaddings, group_paddings, kGroupPaddingsSaved},
    DictKey{keys::kParamAlignmentPaddings, param_alignment_paddings, kParameterAlignment},
    DictKey{keys::kPartitionCount, partition_count},
    DictKey{keys::kDsVersion, ds_version_value},
    DictKey{keys::kParamSliceMappings, param_slice_mappings, kSliceMappingsSaved},
};

constexpr std::array kBf16Optimizer{
    DictKey{keys::kClipGrad, clip_grad_value},
    DictKey{keys::kBaseOptimizerState, torch_optimizer},
    DictKey{keys::kSingleFp32Partition, padded_masters},
    DictKey{keys::kGroupPaddings, paddings_of_last},
    DictKey{keys::kPartitionCount, partition_count},
    DictKey{keys::kDsVersion, ds_version_value},
    DictKey{keys::kParamSliceMappings, param_slice_mappings},
};

}  // namespace

std::span<const DictKey> zero12_keys() {
  return kZero12Keys;
}

std::span<const DictKey> bf16_optimizer_keys() {
  return kBf16Optimizer;
}

}  // namespace dsckpt
