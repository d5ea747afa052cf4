#include "reshard/run_facts.h"

#include <algorithm>
#include <set>
#include <utility>

#include "checkpoint/experts.h"
#include "checkpoint/module_entries.h"
#include "deepspeed/config_pickle.h"
#include "deepspeed/keys.h"
#include "deepspeed/shard_name.h"
#include "deepspeed/zero_layout.h"
#include "dsckpt/error.h"

namespace dsckpt {
using pickle::Value;

Value root_of(const Checkpoint& world) {
  return world.files().model.front().archive->root();
}

Value saved_param_shapes(const Checkpoint& world) {
  const Value shapes = root_of(world).find_or_none(keys::kParamShapes);
  const ShardValue wrapper = world.wrapper_state();
  if (!shapes.is_none() || wrapper.archive == nullptr) return shapes;
  return wrapper.archive->root().find_or_none(keys::kParamShapes);
}

GroupSettings group_settings(const ShardValue& entry) {
  const auto has = [&](std::string_view key) { return !entry.value.find_or_none(key).is_none(); };
  return {.value = entry,
          .known = entry.archive != nullptr,
          .moe = entry.value.find_or_none("moe").is_true(),
          .bias_correction = has("bias_correction"),
          .amsgrad = has("amsgrad")};
}

namespace {

std::vector<RunGroup> groups_of(const Checkpoint& checkpoint) {
  std::vector<RunGroup> groups;
  for (const ParamGroup& group : checkpoint.groups()) {
    RunGroup& made =
        groups.emplace_back(RunGroup{group.params, group_settings(group.settings), group.ep_size});
    made.unmarked_experts =
        made.settings.known && !made.settings.moe &&
        std::any_of(group.params.begin(), group.params.end(), [&](const std::string& name) {
          const Param* param = checkpoint.find(name);
          return param != nullptr && is_expert(*param);
        });
  }
  return groups;
}

std::vector<std::string> state_keys_of(const Checkpoint& checkpoint) {
  std::set<std::string> keys;
  for (const Param& param : checkpoint.params()) {
    for (const ParamState& state : param.states) keys.insert(state.key);
  }
  return {keys.begin(), keys.end()};
}

// Where param_shapes is one dict, the flat tensors tell.
std::vector<size_t> sub_groups_by_size(const Checkpoint& checkpoint, const Value& shapes) {
  const ShardValue wrapper = checkpoint.wrapper_state();
  const auto& names = shapes.as_dict().items;
  std::vector<size_t> sizes;
  size_t at = 0;
  for (const Value& flat : wrapper.value.find_or_none(keys::kFp32FlatGroups).sequence_or_empty()) {
    uint64_t left = static_cast<uint64_t>(numel(wrapper.archive->info(flat).shape));
    const size_t begin = at;
    for (; at < names.size() && left > 0; ++at) {
      const Param* param = checkpoint.find(std::string(names[at].first.as_string()));
      const auto count = param == nullptr ? 0 : static_cast<uint64_t>(param->weight.numel());
      left -= std::min(left, piece_of(count, checkpoint.facts().mesh.dp));
    }
    sizes.push_back(at - begin);
  }
  return sizes;
}

std::vector<size_t> sub_groups_of(const Checkpoint& checkpoint) {
  const Value shapes = saved_param_shapes(checkpoint);
  const auto size = [](const Value& group) {
    return group.is_mapping() ? group.as_dict().items.size() : 0;
  };
  if (shapes.is_mapping()) return sub_groups_by_size(checkpoint, shapes);
  std::vector<size_t> sizes;
  for (const Value& group : shapes.sequence_or_empty()) sizes.push_back(size(group));
  return sizes;
}

DType param_dtype_of(const Checkpoint& checkpoint) {
  const auto& params = checkpoint.params();
  const auto param = std::find_if(params.begin(), params.end(), is_trained);
  if (param == params.end()) return DType::float32;
  const CheckpointFile& file = checkpoint.files().model.front();
  const ModuleEntries module(file.archive->root().find_or_none(keys::kModule));
  const Value value = module.find(param->name);
  if (!TorchArchive::is_tensor(value)) return param->weight.dtype();
  return in_context({.file = file.path.string(), .tensor = param->name},
                    [&] { return file.archive->info(value).dtype; });
}

Precision precision_of_type(DType dtype) {
  switch (dtype) {
    case DType::bfloat16:
      return Precision::bf16;
    case DType::float16:
      return Precision::fp16;
    default:
      return Precision::fp32;
  }
}

Precision precision_of(const Checkpoint& checkpoint, const RunFacts& facts) {
  const Precision by_type = precision_of_type(facts.param_dtype);
  const Precision otherwise = facts.engine ? facts.engine->precision : by_type;
  if (facts.checkpoint.is_universal()) return otherwise;
  if (facts.checkpoint.zero_stage == 0) {
    return facts.checkpoint.optimizer_wrapper == EngineWrapper::plain ? Precision::fp32 : by_type;
  }
  // Old releases have no such names.
  const bool bf16 = checkpoint.files().optim.front().path.filename().string().starts_with("bf16_");
  return bf16 ? Precision::bf16 : otherwise;
}

// AutoTP's engine makes as many slices as its configuration says.
void set_slices(nlohmann::ordered_json& config, const CheckpointFacts& facts) {
  const auto section = config.is_object() ? config.find("tensor_parallel") : config.end();
  if (section == config.end() || !section->is_object() || !section->contains("autotp_size")) return;
  (*section)["autotp_size"] = facts.regridded->mesh.tp;
}

void read_config(const Checkpoint& checkpoint, RunFacts& facts) {
  try {
    facts.config = saved_ds_config(checkpoint);
    if (facts.checkpoint.regridded && facts.config) set_slices(*facts.config, facts.checkpoint);
    if (facts.config) facts.engine = engine_config(*facts.config);
  } catch (const Error& error) {
    facts.config_error = error.message();
  }
}

}  // namespace

DType dtype_of(Precision precision) {
  switch (precision) {
    case Precision::fp16:
      return DType::float16;
    case Precision::bf16:
      return DType::bfloat16;
    case Precision::fp32:
      break;
  }
  return DType::float32;
}

ParamIndex::ParamIndex(std::span<const Param> params) : params_(params) {
  for (const Param& param : params) by_name_.emplace(param.name, &param);
}

const Param* ParamIndex::find(std::string_view name) const {
  const auto found = by_name_.find(name);
  return found == by_name_.end() ? nullptr : found->second;
}

bool has_states(const Param& param) {
  return !param.states.empty() || param.step.archive != nullptr;
}

RunFacts run_facts(const Checkpoint& checkpoint) {
  const ShardValue wrapper = checkpoint.wrapper_state();
  RunFacts facts{.checkpoint = checkpoint.facts(),
                 .folder = checkpoint.tag_folder().string(),
                 .file = {},
                 .changed_from = checkpoint.changed_from(),
                 .params = ParamIndex(checkpoint.params()),
                 .groups = groups_of(checkpoint),
                 .state_keys = state_keys_of(checkpoint),
                 .sub_groups = {},
                 .is_pipeline = false,
                 .has_expert_layers = false,
                 .autoep_params = {},
                 .has_optimizer = wrapper.archive != nullptr,
                 .has_base_step = wrapper.value.is_mapping() &&
                                  wrapper.value.find(keys::kBaseOptimizerStateStep).has_value(),
                 .config = {},
                 .engine = {},
                 .config_error = {}};
  if (checkpoint.files().model.empty()) return facts;
  const auto& path = checkpoint.files().model.front().path;
  facts.file = path.string();
  const bool has_files_of_ranks =
      facts.checkpoint.run == RunKind::native ||
      (facts.checkpoint.run == RunKind::universal && facts.checkpoint.model_parallel);
  facts.is_pipeline =
      has_files_of_ranks && root_of(checkpoint).find_or_none(keys::kModule).is_none();
  facts.has_expert_layers =
      !root_of(checkpoint).find_or_none("num_experts").sequence_or_empty().empty();
  for (const AutoEpRecord& layer : autoep_records(root_of(checkpoint))) {
    for (std::string& name : layer.fused()) facts.autoep_params.push_back(std::move(name));
  }
  if (const auto name = parse_shard_name(path.filename().string())) facts.mp_rank = name->mp_rank;
  if (facts.checkpoint.regridded) facts.mp_rank = facts.checkpoint.regridded->mp_rank;
  const Checkpoint* changed_from = checkpoint.changed_from();
  facts.sub_groups = sub_groups_of(checkpoint);
  facts.param_dtype = param_dtype_of(changed_from != nullptr ? *changed_from : checkpoint);
  read_config(checkpoint, facts);
  facts.precision = precision_of(checkpoint, facts);
  // No copy of a universal checkpoint's layers tells it.
  if (facts.is_pipeline && facts.checkpoint.is_universal()) {
    facts.param_dtype = dtype_of(facts.precision);
  }
  return facts;
}

std::optional<nlohmann::ordered_json> saved_ds_config(const Checkpoint& checkpoint) {
  const Value config = root_of(checkpoint).find_or_none(keys::kDsConfig);
  if (!config.is_mapping()) return std::nullopt;
  return in_context({.file = checkpoint.files().model.front().path.string(),
                     .member = std::string(keys::kDsConfig)},
                    [&] { return json_of(config); });
}

}  // namespace dsckpt
