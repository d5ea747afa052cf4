#include "reshard/state_dict_keys.h"

#include <algorithm>
#include <array>
#include <string>
#include <utility>
#include <vector>

#include "deepspeed/keys.h"
#include "deepspeed/loss_scaler.h"
#include "pickle/python_objects.h"
#include "reshard/experts.h"

namespace dsckpt {
using pickle::Document;
using pickle::Kind;
using pickle::ObjectNode;
using pickle::Value;
namespace {

using Group = ReshardLayout::Group;
using Run = ReshardLayout::Run;

// The value that the checkpoint's wrapper saved under `key`, as it is.
std::optional<Value> carried(const RankFile& file, std::string_view key) {
  const ShardValue& wrapper = file.from.wrapper;
  const auto value = wrapper.value.find(key);
  if (!value) return std::nullopt;
  return file.copy.of(*wrapper.archive, *value);
}

// --- the loss scaler: the old one or one that is made

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

// The attributes of a newly made scaler. Its numbers are the old wrapper's, or the start values of
// a run of the new precision.
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

// --- torch.optim.Optimizer.state_dict, as the wrappers have it inside of theirs, and at stage 0 in
// fp32 nothing around it

// A copy of what the optimizer keeps once, with a storage of its own: steps that shared one would
// be counted together.
Value whole(const RankFile& file, const ShardValue& value) {
  if (TorchArchive::is_tensor(value.value)) {
    return file.copy.writer().tensor(value.archive->tensor(value.value));
  }
  return file.copy.of(*value.archive, value.value);
}

// The states of one run: what the state_dict has under its number.
Value states_of(const RankFile& file, const Run& run) {
  const ReshardLayout& layout = file.layout();
  const Value dict = file.document().dict();
  const Param* stepped = layout.stepped(run, file.rank);
  if (stepped == nullptr) return dict;
  const Param& first = *stepped;
  if (first.step.archive != nullptr) file.copy.set(dict, "step", whole(file, first.step));
  for (size_t i = 0; i < first.states.size(); ++i) {
    file.copy.set(dict, first.states[i].key,
                  file.copy.writer().tensor(layout.state_of(run, file.rank, i)));
  }
  for (const WholeState& other : first.others) {
    file.copy.set(dict, other.key, whole(file, other.value));
  }
  return dict;
}

std::optional<Value> states(const RankFile& file) {
  const Value dict = file.document().dict();
  const std::vector<Run>& runs = file.layout().runs();
  for (size_t i = 0; i < runs.size(); ++i) {
    const Value state = states_of(file, runs[i]);
    if (state.as_dict().items.empty()) continue;
    file.document().set_item(dict, Document::integer(static_cast<int64_t>(i)), state);
  }
  return dict;
}

// A group's hyper-parameters, with the numbers of its runs.
Value settings_of(const RankFile& file, const Group& group, std::vector<Value> numbers) {
  const ShardValue& settings = group.settings;
  Document& document = file.document();
  const Value params = document.list(std::move(numbers));
  if (settings.archive == nullptr) {
    throw UnsupportedError(file.from.where(), "has no hyper-parameters");
  }
  const auto change = [&](std::string_view key, const Value& value) -> std::optional<Value> {
    if (key == "params") return params;
    const bool is_name = group.experts && key == "name" && value.is(Kind::string);
    if (is_name && value.as_string().starts_with(kExpertGroup)) {
      return document.string(expert_group_name(group.mesh.ep));
    }
    return file.copy.of(*settings.archive, value);
  };
  const Value dict = file.copy.dict_of(*settings.archive, settings.value, change);
  if (!settings.value.find("params")) file.copy.set(dict, "params", params);
  return dict;
}

std::optional<Value> param_groups(const RankFile& file) {
  const ReshardLayout& layout = file.layout();
  std::vector<std::vector<Value>> numbers(layout.groups().size());
  for (size_t i = 0; i < layout.runs().size(); ++i) {
    numbers[layout.runs()[i].group].push_back(Document::integer(static_cast<int64_t>(i)));
  }
  std::vector<Value> groups;
  for (size_t g = 0; g < numbers.size(); ++g) {
    groups.push_back(settings_of(file, layout.groups()[g], std::move(numbers[g])));
  }
  return file.document().list(std::move(groups));
}

constexpr std::array kPlain{
    DictKey{"state", states},
    DictKey{keys::kParamGroups, param_groups},
};

std::optional<Value> torch_optimizer(const RankFile& file) {
  return dict_of(file, kPlain);
}

// --- of several wrappers

// Stages 1 and 2 load nothing without it.
std::optional<Value> ds_version_value(const RankFile& file) {
  if (file.target().ds_version.empty()) {
    if (auto saved = carried(file, keys::kDsVersion)) return saved;
  }
  const std::string& version = file.from.ds_version;
  if (!version.empty()) return file.document().string(version);
  if (!file.target().is_zero12()) return std::nullopt;
  throw UnsupportedError(file.from.where(),
                         "does not say which ds_version wrote it; stages 1 and 2 do not load "
                         "without");
}

// zero/config.py ZeroStageEnum, or a number for releases without it.
std::optional<Value> zero_stage_value(const RankFile& file) {
  Document& document = file.document();
  const Value number = Document::integer(file.target().stage);
  const auto saved = file.from.wrapper.value.find(keys::kZeroStage);
  const auto& release = file.target().release;
  if (release ? *release < kZeroStageEnum : saved && saved->is(pickle::Kind::integer)) {
    return number;
  }
  return document.object(ObjectNode::Made::reduce,
                         document.global("deepspeed.runtime.zero.config", "ZeroStageEnum"),
                         document.tuple({number}));
}

std::optional<Value> clip_grad_value(const RankFile& file) {
  if (auto saved = carried(file, keys::kClipGrad)) return saved;
  return Document::real(file.target().engine.gradient_clipping);
}

// A tensor with a storage of its own that requires gradients.
Value masters(const RankFile& file, TensorSource values) {
  Shape shape = values.shape();
  TorchArchiveWriter& writer = file.copy.writer();
  return writer.tensor(writer.storage(std::move(values)), std::move(shape), 0, {}, true);
}

TensorSource master_of(const Param& param) {
  return param.weight;
}

// --- stages 1 and 2: DeepSpeedZeroOptimizer (stage_1_and_2.py), BF16_Optimizer (bf16_optimizer.py)

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
template <bool kPadded>
std::optional<Value> partitions(const RankFile& file) {
  return of_groups(file, [&](const Group& group) {
    return masters(file, file.layout().partition(group, file.rank, kPadded, master_of));
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
  return before && !file.target().elastic ? masters_before_paddings(file) : partitions<false>(file);
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
  return of_groups(file, [&](const Group& group) {
    return file.document().list(integers(group.flat.paddings));
  });
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
    DictKey{keys::kSingleFp32Partition, partitions<true>},
    DictKey{keys::kGroupPaddings, paddings_of_last},
    DictKey{keys::kPartitionCount, partition_count},
    DictKey{keys::kDsVersion, ds_version_value},
    DictKey{keys::kParamSliceMappings, param_slice_mappings},
};

// --- stage 3: DeepSpeedZeroOptimizer_Stage3 (stage3.py _rigid_state_dict)

std::optional<Value> one_partition_count(const RankFile& file) {
  return Document::integer(file.target().dp);
}

// One entry of ds_zero_partition_groups.
Value partition_group(const RankFile& file, const ReshardLayout::Group& group, size_t sub_group) {
  Document& document = file.document();
  const ExpertMesh& mesh = group.mesh;
  std::vector<uint64_t> ranks;
  for (uint32_t i = 0; i < mesh.edp(); ++i) {
    ranks.push_back(mesh.rank_of(mesh.ep_rank(file.rank), i));
  }
  const auto list_of = [&](const std::string& text) {
    return document.list({document.string(text)});
  };
  const std::string name = group.experts ? expert_group_name(mesh.ep) : "replicated";
  const Value entry = document.dict();
  file.copy.set(entry, "sub_group", Document::integer(static_cast<int64_t>(sub_group)));
  file.copy.set(entry, "partition_count", Document::integer(mesh.edp()));
  file.copy.set(entry, "partition_rank", Document::integer(mesh.edp_rank(file.rank)));
  file.copy.set(entry, "partition_ranks", document.list(integers(ranks)));
  file.copy.set(entry, "families", list_of(group.experts ? "autoep_expert" : "replicated"));
  file.copy.set(entry, "group_names", list_of(name));
  return entry;
}

// _zero3_partition_group_metadata: of models with AutoEP's experts.
std::optional<Value> zero_partition_groups(const RankFile& file) {
  const ReshardLayout& layout = file.layout();
  const bool has_experts = std::any_of(layout.groups().begin(), layout.groups().end(),
                                       [](const Group& group) { return group.experts; });
  if (!has_experts && !file.from.wrapper.value.find(keys::kZeroPartitionGroups)) {
    return std::nullopt;
  }
  std::vector<Value> all;
  for (const Run& run : layout.runs()) {
    all.push_back(partition_group(file, layout.groups()[run.group], all.size()));
  }
  return file.document().list(std::move(all));
}

std::optional<Value> fp32_flat_groups(const RankFile& file) {
  std::vector<Value> flat;
  for (const Run& run : file.layout().runs()) {
    flat.push_back(masters(file, file.layout().of_run(run, file.rank, master_of)));
  }
  return file.document().list(std::move(flat));
}

constexpr std::array kZero3Keys{
    DictKey{keys::kZeroStage, zero_stage_value},
    DictKey{keys::kLossScaler, loss_scaler_value},
    DictKey{keys::kDynamicLossScale, dynamic_loss_scale_value},
    DictKey{keys::kOverflow, overflow_value},
    DictKey{keys::kPartitionCount, one_partition_count},
    DictKey{keys::kZeroPartitionGroups, zero_partition_groups},
    DictKey{keys::kOptimizerStateDict, torch_optimizer},
    DictKey{keys::kFp32FlatGroups, fp32_flat_groups},
};

// --- stage 0 in 16 bits: FP16_Optimizer (fp16/fused_optimizer.py), FP16_UnfusedOptimizer
// (fp16/unfused_optimizer.py). They save only those numbers of the loss scaler that change.

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
template <std::optional<Value> (*kMake)(const RankFile&)>
std::optional<Value> in_fp16(const RankFile& file) {
  return file.target().precision == Precision::fp16 ? kMake(file) : std::nullopt;
}

// One tensor a group; None of a group without parameters.
std::optional<Value> fp32_groups_flat(const RankFile& file) {
  std::vector<Value> groups(file.layout().groups().size());
  for (const Run& run : file.layout().runs()) {
    groups[run.group] = masters(file, file.layout().of_run(run, file.rank, master_of));
  }
  return file.document().list(std::move(groups));
}

// A list of one tensor a parameter.
std::optional<Value> fp32_groups(const RankFile& file) {
  std::vector<std::vector<Value>> tensors(file.layout().groups().size());
  for (const Run& run : file.layout().runs()) {
    tensors[run.group].push_back(masters(file, file.layout().of_run(run, file.rank, master_of)));
  }
  std::vector<Value> groups;
  for (auto& group : tensors) groups.push_back(file.document().list(std::move(group)));
  return file.document().list(std::move(groups));
}

constexpr std::array kFp16Fused{
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

constexpr std::array kFp16Unfused{
    DictKey{keys::kDynamicLossScale, dynamic_loss_scale},
    DictKey{"cur_scale", cur_scale},
    DictKey{"cur_iter", cur_iter},
    DictKey{"last_overflow_iter", last_overflow_iter},
    DictKey{"scale_factor", scale_factor},
    DictKey{"scale_window", scale_window},
    DictKey{keys::kOptimizerStateDict, torch_optimizer},
    DictKey{keys::kFp32Groups, fp32_groups},
};

// --- the file around them

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
      return kPlain;
    case EngineWrapper::fp16_unfused:
      return kFp16Unfused;
    case EngineWrapper::fp16_fused:
      return kFp16Fused;
    case EngineWrapper::bf16_optimizer:
      return kBf16Optimizer;
    case EngineWrapper::zero12:
      return kZero12Keys;
    case EngineWrapper::zero3:
      return kZero3Keys;
  }
  return {};
}

Value dict_of(const RankFile& file, std::span<const DictKey> keys) {
  const Value dict = file.document().dict();
  for (const DictKey& key : keys) {
    if (is_before(file.target().release, key.since)) continue;
    if (const auto value = key.make(file)) file.copy.set(dict, key.key, *value);
  }
  return dict;
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
