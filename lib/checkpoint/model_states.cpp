#include "checkpoint/model_states.h"

#include <algorithm>
#include <map>
#include <set>
#include <tuple>
#include <unordered_set>

#include "base/bytes.h"
#include "base/keyed_hash.h"
#include "checkpoint/layout.h"
#include "checkpoint/module_entries.h"
#include "deepspeed/keys.h"
#include "deepspeed/release.h"
#include "deepspeed/run_config.h"
#include "deepspeed/zero_layout.h"
#include "format/meta_tensor.h"

namespace dsckpt {
using pickle::Value;

namespace {

// The function of torch._utils that makes a tensor of `value`: quantised and sparse ones are not
// read; "" for other values.
std::string_view rebuilt_by(const Value& value) {
  if (!value.is(pickle::Kind::object)) return "";
  const pickle::ObjectNode& object = value.as_object();
  if (!object.callable.is(pickle::Kind::global)) return "";
  const auto [module, name] = object.callable.as_global();
  return module == "torch._utils" && name.starts_with("_rebuild_") ? name : std::string_view();
}

// Stage 1 in bf16 with gradients in fp32: these releases do not make its BF16_Optimizer. The engine
// takes an optimizer without ZeRO for it and saves none.
bool saves_weights_alone(const RunConfig& config, const std::optional<Release>& release) {
  if (!release || !config.engine) return false;
  if (*release < kNoBf16OptimizerAtStage0 || *release >= kBf16StatesAtStage0) return false;
  const EngineConfig& engine = *config.engine;
  return engine.zero_stage == 1 && engine.precision == Precision::bf16 &&
         engine.grad_accum_dtype == Precision::fp32 &&
         engine.offload_optimizer != OffloadDevice::cpu;
}

}  // namespace

ModelStates::ModelStates(const Shard& shard) : fields(shard, shard.archive.root()) {
  const auto module_value = shard.archive.root().find(keys::kModule);
  if (!module_value) throw CorruptError(fields.where(), "has no key 'module'");
  if (!module_value->is_mapping() && !module_value->is_none()) {
    throw CorruptError(fields.where(keys::kModule),
                       "is not a state_dict, but " + describe(*module_value));
  }
  if (module_value->is_mapping()) {
    in_context(fields.where(keys::kModule), [&] {
      for (const auto& entry : module_value->as_dict().items) entry.first.as_string();
    });
  }
  const ModuleEntries entries(*module_value);
  for (const auto& [name, value] : entries.all()) {
    if (TorchArchive::is_tensor(value)) {
      module.emplace_back(name, value);
    } else if (is_meta_tensor(value) && fields.has(keys::kStripped)) {
      stripped.emplace(name, in_context(fields.where(keys::kModule),
                                        [&meta = value] { return meta_tensor(meta).shape; }));
    } else {
      not_tensors.emplace_back(name, value);
    }
  }
  for (const auto& [name, value] : module) by_name.emplace(name, value);

  std::unordered_set<const void*> known;  // a list may have one text very often
  for (const Value& name : fields.sequence(keys::kBufferNames)) {
    if (name.is(pickle::Kind::string) && !known.insert(name.identity()).second) continue;
    buffer_names.emplace(
        in_context(fields.where(keys::kBufferNames), [&] { return name.as_string(); }));
  }
  read_param_shapes(fields);
  if (const auto shapes = fields.get(keys::kFrozenParamShapes)) {
    frozen_param_shapes = named_shapes(shard, *shapes, keys::kFrozenParamShapes);
  }
  frozen_param_fragments = fields.get(keys::kFrozenParamFragments);
  if (const auto shared = fields.get(keys::kSharedParams)) {
    in_context(fields.where(keys::kSharedParams), [&] {
      for (const auto& [alias, owner] : shared->as_dict().items) {
        tie(std::string(alias.as_string()), std::string(owner.as_string()));
      }
    });
  }
}

void ModelStates::read_param_shapes(const Fields& from) {
  const Shard& holder = from.shard();
  // Releases before 0.5.4 wrote one dict where there are lists of them now.
  const auto add = [&](const Value& shapes) {
    param_shapes.push_back(named_shapes(holder, shapes, keys::kParamShapes));
    for (const auto& entry : param_shapes.back()) {
      if (trainable_names.insert(entry.first).second) continue;
      throw InconsistentError({.file = holder.display, .tensor = entry.first}, "is named twice");
    }
  };
  if (const auto shapes = from.get(keys::kParamShapes); shapes && shapes->is_mapping()) {
    add(*shapes);
  } else if (shapes) {
    for (const Value& group : from.sequence(keys::kParamShapes)) add(group);
  }
}

void ModelStates::tie(std::string alias, std::string owner) {
  in_context(fields.where(keys::kSharedParams), [&] { owners_.add(owner); });
  shared_params.emplace_back(std::move(alias), std::move(owner));
}

void ModelStates::take_param_shapes(const Shard& optim) {
  if (!fields.has(keys::kParamShapes)) read_param_shapes(Fields(optim, optim.archive.root()));
}

void ModelStates::split_param_shapes(const std::vector<uint64_t>& group_numels, uint64_t ranks) {
  if (param_shapes.size() != 1 || group_numels.size() < 2) return;
  std::vector<NamedShapes> groups(group_numels.size());
  size_t group = 0;
  uint64_t used = 0;
  for (const auto& entry : param_shapes.front()) {
    while (used == group_numels[group] && group + 1 < groups.size()) {
      ++group;
      used = 0;
    }
    used = checked_add(used, piece_of(static_cast<uint64_t>(numel(entry.second)), ranks));
    groups[group].push_back(entry);
  }
  if (group + 1 == groups.size() && used == group_numels[group]) param_shapes = std::move(groups);
}

KeyedSet<std::string> ModelStates::aliases() const {
  KeyedSet<std::string> names;
  for (const auto& entry : shared_params) names.insert(entry.first);
  return names;
}

void ModelStates::drop_false_aliases() {
  std::erase_if(shared_params, [&](const auto& entry) {
    const auto alias = by_name.find(entry.first);
    const auto owner = by_name.find(entry.second);
    return alias != by_name.end() && owner != by_name.end() &&
           shard().archive.info(alias->second).shape != shard().archive.info(owner->second).shape;
  });
}

void ModelStates::note_not_tensors(CheckpointDraft& draft) const {
  for (const auto& [name, value] : not_tensors) {
    if (is_trainable(name)) continue;  // its values are those of the master
    const std::string_view rebuilt = rebuilt_by(value);
    draft.notes.push_back("'" + name + "' of the model's state is " +
                          (rebuilt.empty()
                               ? std::string("not a tensor")
                               : "a tensor of an unsupported kind (" + std::string(rebuilt) + ")") +
                          "; left out of weights");
    if (!rebuilt.empty() || buffer_names.contains(name)) draft.valueless.push_back(name);
  }
}

void ModelStates::find_tied_views() {
  using View = std::tuple<int64_t, Shape, Strides>;
  std::map<std::string, std::map<View, std::vector<std::string>>> names_of;  // by storage
  for (const auto& [name, value] : module) {
    if (buffer_names.contains(name)) continue;
    in_context({.file = shard().display, .tensor = name}, [&, &tied = name, &tensor = value] {
      const TensorInfo info = shard().archive.info(tensor);
      if (numel(info.shape) == 0) return;
      names_of[info.storage_key][{info.storage_offset, info.shape, info.strides}].push_back(tied);
    });
  }
  const KeyedSet<std::string> known = aliases();
  for (const auto& [storage, views] : names_of) {
    for (const auto& [view, names] : views) {
      const auto trained = std::find_if(
          names.begin(), names.end(), [&](const std::string& name) { return is_trainable(name); });
      const std::string& owner = trained == names.end() ? names.front() : *trained;
      for (const std::string& name : names) {
        if (name != owner && !is_trainable(name) && !known.contains(name)) tie(name, owner);
      }
    }
  }
}

bool ModelStates::is_placeholder(const Shape& shape) const {
  if (shape != Shape{1}) return numel(shape) == 0;
  const auto release = release_of(fields.text(keys::kDsVersion));
  return !release || *release < kEmptyPlaceholders;
}

void ModelStates::find_tied_placeholders() {
  std::map<std::string, std::vector<std::string>> names_of;
  for (const auto& [name, value] : module) {
    if (buffer_names.contains(name)) continue;
    in_context({.file = shard().display, .tensor = name}, [&, &tied = name, &tensor = value] {
      const TensorInfo info = shard().archive.info(tensor);
      if (is_placeholder(info.shape)) names_of[info.storage_key].push_back(tied);
    });
  }
  KeyedSet<std::string> has_values = trainable_names;
  for (const auto& entry : frozen_param_shapes) has_values.insert(entry.first);
  const KeyedSet<std::string> known = aliases();
  for (const auto& [storage, names] : names_of) {
    const auto is_owner = [&](const std::string& name) { return has_values.contains(name); };
    // Where several that are not tied share a storage it tells nothing.
    if (std::count_if(names.begin(), names.end(), is_owner) != 1) continue;
    const std::string& owner = *std::find_if(names.begin(), names.end(), is_owner);
    for (const std::string& name : names) {
      if (name != owner && !known.contains(name)) tie(name, owner);
    }
  }
}

std::vector<std::pair<std::string, Value>> ModelStates::rest_of_module() const {
  const KeyedSet<std::string> tied = aliases();
  std::vector<std::pair<std::string, Value>> rest;
  for (const auto& [name, value] : module) {
    if (buffer_names.contains(name) || is_trainable(name) || tied.contains(name)) continue;
    rest.emplace_back(name, value);
  }
  return rest;
}

RankModels::RankModels(const std::vector<Shard>& shards) {
  std::map<std::pair<uint32_t, const pickle::Document*>, const ModelStates*> known;
  for (const Shard& shard : shards) {
    const auto [found, is_new] =
        known.try_emplace({shard.name.mp_rank, &shard.archive.document()}, nullptr);
    if (is_new) found->second = &distinct_.emplace_back(shard);
    ranks_.push_back({&shard, found->second});
  }
}

void throw_other_save(const ModelStates& model, const ModelStates& reference,
                      std::string_view key) {
  throw InconsistentError(model.fields.where(key),
                          "differs from that in " + reference.shard().display +
                              ": the ranks were not saved at the same step");
}

void check_same_save(const ModelStates& model, const ModelStates& reference) {
  if (model.frozen_param_shapes != reference.frozen_param_shapes) {
    throw_other_save(model, reference, keys::kFrozenParamShapes);
  }
  const std::string key =
      other_save_key(model.shard().archive.root(), reference.shard().archive.root());
  if (!key.empty()) throw_other_save(model, reference, key);
}

std::string other_save_key(const Value& model, const Value& reference) {
  for (const std::string_view key :
       {keys::kGlobalSteps, keys::kSkippedSteps, keys::kGlobalSamples, keys::kDsVersion}) {
    const Value a = model.find_or_none(key);
    const Value b = reference.find_or_none(key);
    if (a.is_none() != b.is_none() || (!a.is_none() && !same_plain_data(a, b))) {
      return std::string(key);
    }
  }
  return "";
}

bool has_optimizer_elsewhere(const Shard& shard) {
  const Value root = shard.archive.root();
  if (!root.find_or_none(keys::kOptimizer).is_none()) return false;
  if (root.find_or_none(keys::kParamShapes).is_none()) return false;
  const RunConfig config = run_config(root.find_or_none(keys::kDsConfig), {});
  const Value version = root.find_or_none(keys::kDsVersion);
  if (config.saved && config.zero_stage.value_or(1) == 0) return false;
  return !saves_weights_alone(
      config, release_of(version.is(pickle::Kind::string) ? version.as_string() : ""));
}

void ParamList::add(Param param) {
  if (!index_.emplace(param.name, params_.size()).second) {
    throw InconsistentError({.tensor = param.name}, "is named twice");
  }
  params_.push_back(std::move(param));
}

const Param* ParamList::find(std::string_view name) const {
  const auto found = index_.find(std::string(name));
  return found == index_.end() ? nullptr : &params_[found->second];
}

void ParamList::add_buffers(const ModelStates& states) {
  for (const auto& [name, value] : states.module) {
    if (!states.buffer_names.contains(name) || has(name)) continue;
    in_context({.file = states.shard().display, .tensor = name}, [&, &key = name, &tensor = value] {
      add({.name = key,
           .kind = ParamKind::buffer,
           .weight = states.shard().archive.tensor(tensor)});
    });
  }
}

void ParamList::add_aliases(const ModelStates& states, std::vector<std::string>& notes) {
  // An owner may itself be an alias that comes later. They are added as by passes over the list
  // until nothing changes, but only those are visited whose owner is there.
  const auto& shared = states.shared_params;
  KeyedMap<std::string_view, std::vector<size_t>> by_owner;
  std::set<std::pair<size_t, size_t>> ready;  // pass, index
  for (size_t i = 0; i < shared.size(); ++i) {
    by_owner[shared[i].second].push_back(i);
    if (has(shared[i].second)) ready.emplace(0, i);
  }
  while (!ready.empty()) {
    const auto [pass, index] = ready.extract(ready.begin()).value();
    const auto& [alias, owner] = shared[index];
    if (has(alias)) continue;
    const Param& found = params_[index_.at(owner)];
    Param tied = found;
    tied.name = alias;
    tied.alias_of = found.alias_of.empty() ? owner : found.alias_of;
    in_context({.file = states.shard().display}, [&] { owners_.add(tied.alias_of); });
    index_.emplace(alias, params_.size());
    params_.push_back(std::move(tied));
    const auto behind = by_owner.find(alias);
    if (behind == by_owner.end()) continue;
    for (const size_t next : behind->second) ready.emplace(next > index ? pass : pass + 1, next);
  }
  std::vector<std::pair<std::string, std::string>> waiting;
  for (const auto& entry : shared) {
    if (!has(entry.first)) waiting.push_back(entry);
  }
  // Where exclude_frozen_parameters left out the first name of a frozen parameter, `module` has it
  // under the others.
  KeyedMap<std::string, std::string> stands_for;
  for (const auto& [alias, owner] : waiting) {
    const auto found = states.by_name.find(alias);
    const std::optional<TensorSource> value =
        found == states.by_name.end()
            ? std::nullopt
            : in_context({.file = states.shard().display, .tensor = alias}, [&] {
                return std::optional(states.shard().archive.tensor(found->second));
              });
    if (value && !states.is_placeholder(value->shape())) {
      const std::string& first = stands_for.try_emplace(owner, alias).first->second;
      in_context({.file = states.shard().display}, [&] { owners_.add(first); });
      add({.name = alias,
           .kind = ParamKind::frozen,
           .weight = *value,
           .alias_of = first == alias ? "" : first});
      continue;
    }
    notes.push_back("'" + alias + "' is tied to '" + owner +
                    "', which is not in the checkpoint; left out");
  }
}

}  // namespace dsckpt
