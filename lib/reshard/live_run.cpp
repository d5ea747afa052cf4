#include "reshard/live_run.h"

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <span>
#include <string_view>
#include <utility>

#include "base/json.h"
#include "base/text.h"
#include "checkpoint/experts.h"
#include "deepspeed/keys.h"
#include "dsckpt/error.h"
#include "pickle/pickle.h"
#include "reshard/engine_part.h"

namespace dsckpt {
using pickle::Document;
using pickle::Value;
namespace {

constexpr const char* kEngine = "the engine";  // in messages, where others have a folder

// Archives of values are told apart by their places in a file, behind its end.
constexpr uint64_t kSettingsPlace = ~uint64_t{0} - 3;

EngineWrapper wrapper_called(const std::string& name) {
  for (size_t i = 0; i < kEngineWrappers; ++i) {
    const auto wrapper = static_cast<EngineWrapper>(i);
    if (to_string(wrapper) == name) return wrapper;
  }
  throw UsageError("the engine's optimizer is " + name + ", which is not known");
}

Precision precision_called(const std::string& name) {
  for (const Precision each : {Precision::fp32, Precision::fp16, Precision::bf16}) {
    if (to_string(each) == name) return each;
  }
  throw UsageError("the engine's precision is " + name + ", which is not known");
}

}  // namespace

LiveRun::LiveRun(const EngineFacts& engine, const Checkpoint& source, const InputFiles& inputs) {
  facts_.folder = facts_.file = kEngine;
  CheckpointFacts& known = facts_.checkpoint;
  known.zero_stage = engine.stage;
  known.optimizer_wrapper = wrapper_called(engine.wrapper);
  known.mesh.dp = engine.dp;
  known.ds_version = engine.ds_version;
  known.round_robin = engine.round_robin;
  known.parameter_alignment = engine.parameter_alignment;
  facts_.precision = precision_called(engine.precision);
  facts_.has_optimizer = true;
  facts_.is_pipeline = !engine.stages.empty();
  match_owners(engine, source);
  add_params(engine, source);
  add_groups(engine, inputs);
  add_config(engine);
}

const std::string& LiveRun::owner_of(const std::string& name) const {
  const auto found = owners_.find(name);
  return found == owners_.end() ? name : found->second;
}

void LiveRun::match_owners(const EngineFacts& engine, const Checkpoint& source) {
  for (const EngineTensor& tensor : engine.tensors) {
    if (tensor.alias_of.empty()) continue;
    const Param* alias = source.find(tensor.name);
    const Param* owner = source.find(tensor.alias_of);
    // The tensor has two names; the source has the other one in its optimizer.
    if (alias == nullptr || !alias->alias_of.empty()) continue;
    if (owner == nullptr || owner->alias_of == tensor.name) {
      owners_.emplace(tensor.alias_of, tensor.name);
    }
  }
}

void LiveRun::add_params(const EngineFacts& engine, const Checkpoint& source) {
  const LocalExperts experts(engine);
  KeyedSet<std::string> names;
  const auto add = [&](Param param) {
    if (names.insert(param.name).second) params_.push_back(std::move(param));
  };
  for (const EngineTensor& tensor : engine.tensors) {
    if (!engine.strict && tensor.kind != ParamKind::trainable && !source.find(tensor.name))
      continue;
    if (tensor.ep > 0) {
      add_expert(tensor, experts.count(tensor.name));
      continue;
    }
    const std::string& own = tensor.alias_of.empty() ? tensor.name : tensor.alias_of;
    const std::string& owner = owner_of(own);
    add({.name = tensor.name,
         .kind = tensor.kind,
         .weight = TensorSource::zeros(tensor.dtype, tensor.shape),
         .alias_of = owner == tensor.name ? "" : owner});
    if (facts_.params.all().empty() && tensor.kind == ParamKind::trainable) {
      facts_.param_dtype = tensor.dtype;
    }
  }
  if (!engine.strict) {
    for (const Param& param : source.params()) {
      if (param.kind != ParamKind::trainable) add(param);
    }
  }
  facts_.params = ParamIndex(params_);
}

void LiveRun::add_expert(const EngineTensor& tensor, int64_t of_rank) {
  const auto add = [&](const std::string& name, const Shape& shape) -> Param& {
    return params_.emplace_back(Param{
        .name = name, .kind = tensor.kind, .weight = TensorSource::zeros(tensor.dtype, shape)});
  };
  if (const auto expert = parse_expert_name(tensor.name); expert && of_rank > 0) {
    for (uint32_t rank = 0; rank < tensor.ep; ++rank) {
      add(expert->with(rank * of_rank + expert->number), tensor.shape);
    }
    return;
  }
  Shape shape = tensor.shape;
  if (shape.empty()) throw UsageError(tensor.name + " has no dimension of experts");
  shape.front() *= tensor.ep;
  add(tensor.name, shape).form.ep_num_experts = shape.front();
}

void LiveRun::add_groups(const EngineFacts& engine, const InputFiles& inputs) {
  Document document = Document::parse(std::as_bytes(std::span(engine.settings)));
  settings_.emplace(
      TorchArchive::of_values(inputs, {FileId{0}, kSettingsPlace, 0}, std::move(document)));
  const auto settings = settings_->root().sequence_or_empty();
  if (settings.size() != engine.groups.size()) {
    throw UsageError("hyper-parameters of " + counted(settings.size(), "group") + ", not " +
                     std::to_string(engine.groups.size()));
  }
  KeyedMap<std::string_view, uint32_t> ep_sizes;
  for (const EngineTensor& tensor : engine.tensors) {
    if (tensor.ep > 0) ep_sizes.emplace(tensor.name, tensor.ep);
  }
  for (size_t g = 0; g < engine.groups.size(); ++g) {
    RunGroup group{.params = {}, .settings = group_settings({&*settings_, settings[g]})};
    for (const std::string& name : engine.groups[g]) {
      group.params.push_back(owner_of(name));
      if (const auto found = ep_sizes.find(name); found != ep_sizes.end()) {
        group.ep_size = found->second;
        group.unmarked_experts = !group.settings.moe;
      }
    }
    facts_.groups.push_back(std::move(group));
  }
}

void LiveRun::add_config(const EngineFacts& engine) {
  const nlohmann::json config = parse_json(engine.ds_config);
  if (!config.is_object()) throw UsageError("the engine's configuration is not a JSON object");
  facts_.config = nlohmann::ordered_json(config);
  try {
    facts_.engine = engine_config(*facts_.config);
  } catch (const Error& error) {
    facts_.config_error = error.message();
  }
}

LocalExperts::LocalExperts(const EngineFacts& engine) {
  for (const EngineTensor& tensor : engine.tensors) {
    const auto expert = tensor.ep > 0 ? parse_expert_name(tensor.name) : std::nullopt;
    if (!expert) continue;
    int64_t& count = counts_[expert->before];
    count = std::max(count, expert->number + 1);
  }
}

int64_t LocalExperts::count(const std::string& name) const {
  const auto expert = parse_expert_name(name);
  const auto found = expert ? counts_.find(expert->before) : counts_.end();
  return found == counts_.end() ? 0 : found->second;
}

LiveEntries::LiveEntries(InputFiles& inputs, const Checkpoint& whole, const Checkpoint& world,
                         const Regrid* grid, const EngineFacts& engine, const ReshardTarget& target)
    : local_(engine), mesh_{.dp = target.dp, .data_before = target.data_before_experts} {
  // Stage 3 keeps experts with the ranks.
  for (const EngineTensor& tensor : engine.tensors) {
    if (engine.stages.empty() && (tensor.ep == 0 || target.stage == 3)) continue;
    const bool is_fused = tensor.ep > 0 && local_.count(tensor.name) == 0;
    const int64_t experts = is_fused && !tensor.shape.empty() ? tensor.shape.front() : 0;
    numbers_.emplace(tensor.name, wanted_.size());
    wanted_.push_back({.name = tensor.name, .ep = tensor.ep, .experts = experts});
  }
  if (wanted_.empty()) return;
  if (whole.facts().is_foreign()) {
    take_params(world, target);
    if (engine.strict) refuse_others(whole, engine);
    return;
  }
  are_copies_ = !target.param_dtype && !whole.facts().is_universal();
  RankFreeFiles files(inputs, whole);
  if (grid != nullptr && !grid->keeps_slices()) {
    found_ = grid_tensors(*grid, files, target, engine.mp_rank % engine.tp);
  } else {
    take_tensors(files, whole, world, engine, target);
  }
  if (engine.strict) refuse_others(whole, engine);
}

// No file has these entries but those of the values.
void LiveEntries::take_params(const Checkpoint& world, const ReshardTarget& target) {
  const DType dtype = target.param_dtype.value_or(target.saved_param_dtype);
  for (const Param& param : world.params()) {
    const Param* owner = param.alias_of.empty() ? &param : world.find(param.alias_of);
    found_.emplace(param.name,
                   owner != nullptr && is_trained(*owner) ? param.weight.to(dtype) : param.weight);
  }
}

void LiveEntries::take_tensors(RankFreeFiles& files, const Checkpoint& whole,
                               const Checkpoint& world, const EngineFacts& engine,
                               const ReshardTarget& target) {
  const uint32_t tp = whole.facts().mesh.tp;
  const uint32_t tp_rank = engine.mp_rank % tp;
  files.check(world, engine.mp_rank);
  if (world.facts().zero_stage == 3) files.take_values(world, target);  // which has no such files
  // The file of a tied layer has the values of its first stage.
  for (uint32_t mp_rank = tp_rank;
       target.param_dtype && world.facts().zero_stage != 3 && mp_rank < whole.facts().mesh.pp * tp;
       mp_rank += tp) {
    files.take_values(whole.world(mp_rank), target);
  }
  found_ = files.tensors(tp_rank);
}

std::string LiveEntries::local_name(const std::string& name) const {
  if (const int64_t count = local_.count(name); count > 0) {
    const auto expert = parse_expert_name(name);
    return expert->with(expert->number % count);
  }
  const std::string front = name.substr(0, std::min(name.size(), name.rfind('.')));
  const auto fused = numbers_.find(front);
  return fused != numbers_.end() && wanted_[fused->second].experts > 0 ? front : name;
}

void LiveEntries::refuse_others(const Checkpoint& whole, const EngineFacts& engine) const {
  const LayersOfRank layers(engine);
  const std::string* first = nullptr;
  for (const auto& entry : found_) {
    const std::string& name = entry.first;
    if (numbers_.contains(local_name(name))) continue;
    if (!layers.may_have(name)) continue;
    if (first == nullptr || name < *first) first = &name;
  }
  if (first == nullptr) return;
  throw InconsistentError({.file = whole.tag_folder().string(), .tensor = *first},
                          "is not in the engine");
}

// AutoEP's files have an expert each, without the dimension of the experts.
TensorSource LiveEntries::joined(const Wanted& wanted, uint32_t ep_rank) const {
  std::vector<TensorSource> experts;
  for (int64_t i = 0; i < wanted.experts; ++i) {
    const std::string name = wanted.name + "." + std::to_string(ep_rank * wanted.experts + i);
    const auto found = found_.find(name);
    if (found == found_.end()) {
      throw InconsistentError({.tensor = name}, "is in no file of the checkpoint");
    }
    Shape shape = found->second.shape();
    shape.insert(shape.begin(), 1);
    experts.push_back(found->second.view(shape));
  }
  return TensorSource::cat(0, std::move(experts));
}

std::vector<ModuleEntry> LiveEntries::of(uint32_t rank) const {
  std::vector<ModuleEntry> entries;
  for (const Wanted& wanted : wanted_) {
    ExpertMesh mesh = mesh_;
    mesh.ep = std::max(wanted.ep, uint32_t{1});
    const uint32_t ep_rank = mesh.ep_rank(rank);
    if (wanted.experts > 0) {
      entries.push_back({wanted.name, joined(wanted, ep_rank)});
      continue;
    }
    const int64_t count = local_.count(wanted.name);
    const auto expert = count > 0 ? parse_expert_name(wanted.name) : std::nullopt;
    const auto found =
        found_.find(expert ? expert->with(ep_rank * count + expert->number) : wanted.name);
    if (found != found_.end()) entries.push_back({wanted.name, found->second});
  }
  return entries;
}

}  // namespace dsckpt
