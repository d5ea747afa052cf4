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
#include "dsckpt/error.h"
#include "pickle/pickle.h"
#include "reshard/live_entries.h"

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

}  // namespace dsckpt
