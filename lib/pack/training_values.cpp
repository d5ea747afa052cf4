#include "pack/training_values.h"

#include <map>
#include <set>
#include <string>
#include <string_view>

#include "checkpoint/experts.h"
#include "checkpoint/optim_states.h"
#include "checkpoint/pipeline_layers.h"
#include "deepspeed/keys.h"
#include "format/tensors_in.h"

namespace dsckpt {
using pickle::Kind;
using pickle::Value;
namespace {

using Kinds = ShardName::Kind;
using Values = std::vector<Value>;

void append(Values& values, const Values& more) {
  values.insert(values.end(), more.begin(), more.end());
}

Values all_tensors_in(const Value& value) {
  Values found;
  for (const FoundTensor& tensor : tensors_in(value)) found.push_back(tensor.value);
  return found;
}

// Returns the values for parameters in a torch optimizer's state_dict, or in elastic ZeRO's list of
// states.
Values in_optimizer(const Value& optimizer) {
  Values found;
  if (optimizer.is(Kind::list)) {
    for (const Value& states : optimizer.as_sequence()) {
      append(found, TrainingValues::in_states(states));
    }
    return found;
  }
  const Value all = optimizer.find_or_none("state");
  if (!all.is_mapping()) return found;
  for (const auto& [number, states] : all.as_dict().items) {
    append(found, TrainingValues::in_states(states));
  }
  return found;
}

// Reads `optimizer` of stage 0: torch's, or a wrapper of fp16 or bf16 around it.
Values in_plain_optimizer(const Value& root) {
  const Value optimizer = root.find_or_none(keys::kOptimizer);
  const Value inner = optimizer.find_or_none(keys::kOptimizerStateDict);
  return in_optimizer(inner.is_none() ? optimizer : inner);
}

Values in_zero_optimizer(const Value& wrapper) {
  Values found = in_optimizer(wrapper.find_or_none(keys::kBaseOptimizerState));
  append(found, in_optimizer(wrapper.find_or_none(keys::kOptimizerStateDict)));
  return found;
}

// Finds out which names of a module are trained. An alias is trained if its owner is.
class TrainedNames {
 public:
  // `model` must outlive this.
  explicit TrainedNames(const ModelStates& model) : model_(model) {
    for (const auto& [alias, owner] : model.shared_params) next_.emplace(alias, owner);
  }

  bool has(const std::string& name) {
    return !model_.buffer_names.contains(name) && model_.is_trainable(std::string(owner_of(name)));
  }

 private:
  // Follows aliases to the owner, which may be an alias itself. A circle ends at its first
  // repetition.
  std::string_view owner_of(std::string_view name) {
    std::set<std::string_view> passed;
    std::string_view owner = name;
    for (auto next = next_.find(owner); next != next_.end() && passed.insert(owner).second;
         next = next_.find(owner)) {
      owner = next->second;
    }
    // Later lookups of these aliases then take one step.
    for (const std::string_view alias : passed) {
      if (alias != owner) next_[alias] = owner;
    }
    return owner;
  }

  const ModelStates& model_;
  std::map<std::string_view, std::string_view> next_;
};

}  // namespace

TrainingValues::TrainingValues(const InputFiles& inputs, const std::vector<Shard>& shards,
                               bool without_zero)
    : without_zero_(without_zero) {
  if (without_zero) return;
  for (const Shard& shard : shards) {
    if (shard.name.kind != Kinds::model_states) continue;
    ModelStates& model = models_.emplace(&shard, ModelStates(shard)).first->second;
    model.drop_false_aliases();
    model.find_tied_views();
    add_router_aliases(model, inputs);
    trained_.insert(model.trainable_names.begin(), model.trainable_names.end());
  }
  for (const std::string& name : trained_) {
    if (const auto expert = parse_expert_name(name)) {
      trained_experts_.emplace(expert->before, expert->after);
    }
  }
  find_trained_layers(shards);
}

void TrainingValues::find_trained_layers(const std::vector<Shard>& shards) {
  std::vector<std::string> names;
  for (const auto& [shard, model] : models_) {
    for (const NamedShapes& group : model.param_shapes) {
      for (const auto& entry : group) names.push_back(entry.first);
    }
  }
  for (const auto& [shard, model] : models_) {
    names.insert(names.end(), model.buffer_names.begin(), model.buffer_names.end());
  }
  LayerFronts fronts(names);
  // Shards are sorted by tensor-parallel rank, so that the first rank's layers are kept.
  std::map<uint32_t, const Shard*> layers;
  for (const Shard& shard : shards) {
    if (shard.name.kind == Kinds::layer) layers.emplace(shard.name.layer, &shard);
  }
  for (const auto& [index, shard] : layers) {
    fronts_.emplace(index, fronts.front_for(index, names_in_layer(*shard)));
  }
}

Values TrainingValues::in_states(const Value& states) {
  if (!states.is_mapping()) return all_tensors_in(states);
  Values found;
  for (const auto& [key, value] : states.as_dict().items) {
    const bool is_step = key.is(Kind::string) && key.as_string() == "step";
    if (!is_step) append(found, all_tensors_in(value));
  }
  return found;
}

Values TrainingValues::in_universal_wrapper(const Value& root) {
  Values found = in_zero_optimizer(root);
  append(found, all_tensors_in(root.find_or_none(keys::kFp32FlatGroups)));
  return found;
}

bool TrainingValues::is_trained_expert(const ShardName& file, const std::string& name) const {
  if (const auto expert = parse_expert_name(name)) {
    return trained_experts_.contains({expert->before, expert->after});
  }
  // AutoEP appends the number of the expert to a common name.
  const std::string number = "." + std::to_string(file.expert);
  return name.ends_with(number) && trained_.contains(name.substr(0, name.size() - number.size()));
}

Values TrainingValues::in_module(const ModelStates& model) const {
  Values found;
  TrainedNames trained(model);
  for (const auto& [name, value] : model.module) {
    // Empty tensors have no bytes to drop, and their shapes show which of them are tied.
    const bool empty = numel(model.shard().archive.info(value).shape) == 0;
    if (!empty && trained.has(name)) found.push_back(value);
  }
  return found;
}

Values TrainingValues::in(const Shard& shard) const {
  const Value root = shard.archive.root();
  switch (shard.name.kind) {
    case Kinds::model_states:
      return without_zero_ ? in_plain_optimizer(root) : in_module(models_.at(&shard));
    case Kinds::expert_optim:
      return in_plain_optimizer(root);
    case Kinds::optim_states:
      return in_zero_optimizer(root.find_or_none(keys::kOptimizerStateDict));
    case Kinds::layer:
    case Kinds::expert: {
      Values found;
      if (without_zero_) return found;
      for (const std::string& name : names_in_layer(shard)) {
        const Value value = root.at(name);
        const bool trained = shard.name.kind == Kinds::expert
                                 ? is_trained_expert(shard.name, name)
                                 : trained_.contains(fronts_.at(shard.name.layer) + name);
        if (trained && TorchArchive::is_tensor(value)) found.push_back(value);
      }
      return found;
    }
    case Kinds::zero_model_states:
    case Kinds::universal:
      break;
  }
  return {};
}

std::vector<std::pair<std::string, std::string>> TrainingValues::untold_aliases(
    const Shard& shard) const {
  std::vector<std::pair<std::string, std::string>> untold;
  const auto model = models_.find(&shard);
  if (model == models_.end()) return untold;
  const Value told = shard.archive.root().find_or_none(keys::kSharedParams);
  TrainedNames trained(model->second);
  for (const auto& [alias, owner] : model->second.shared_params) {
    if (told.is_mapping() && told.find(alias)) continue;
    if (trained.has(alias)) untold.emplace_back(alias, owner);
  }
  return untold;
}

}  // namespace dsckpt
