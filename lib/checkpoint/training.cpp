// A training without ranks: the model's state_dict and the optimizer's. torch's tutorials,
// Lightning and many programs save both in one file. The Trainer and Accelerate save weights and an
// optimizer's file beside them, on one GPU and with DDP. Layout: LAYOUTS.md; source:
// lightning/pytorch/trainer/connectors/checkpoint_connector.py dump_checkpoint,
// torch/optim/optimizer.py state_dict, transformers/trainer.py _save_optimizer_and_scheduler,
// accelerate/checkpointing.py save_accelerator_state.

#include <algorithm>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "base/text.h"
#include "checkpoint/hub_weights.h"
#include "checkpoint/layout.h"
#include "checkpoint/state_dicts.h"
#include "checkpoint/weights.h"
#include "dsckpt/error.h"
#include "format/rank_tensor.h"
#include "format/tensors_in.h"

namespace dsckpt {
namespace {

using pickle::Kind;
using pickle::Value;

// The same text for views of the same elements.
std::string place_of(const TensorInfo& info) {
  if (numel(info.shape) == 0) return "";
  return info.storage_key + " " + std::to_string(info.storage_offset) + to_text(info.shape) +
         to_text(info.strides) + std::string(torch_name(info.dtype));
}

std::vector<ModelEntry> model_entries(CheckpointDraft& draft, const TorchArchive& archive,
                                      const Value& dict) {
  std::vector<ModelEntry> entries;
  FoundTensors found = find_tensors(dict);
  for (const OpaqueTensor& opaque : found.opaque) {
    draft.valueless.push_back(opaque.path);
    draft.notes.push_back("'" + printable(opaque.path) + "' is a tensor of an unsupported " +
                          "kind (" + opaque.kind + ")");
  }
  for (const FoundTensor& tensor : found.tensors) {
    if (tensor.is_piece) continue;
    in_context({.tensor = tensor.path}, [&] {
      const TensorInfo info = archive.info(tensor.value);
      entries.push_back({tensor.path, archive.tensor(tensor.value), place_of(info)});
    });
  }
  return entries;
}

OptimizerDict optimizer_dict(const TorchArchive& archive, const Value& state_dict) {
  OptimizerDict optimizer{.groups = optimizer_groups(archive, state_dict)};
  for (const auto& [key, value] : state_dict.at("state").as_dict().items) {
    if (!value.is_mapping()) continue;
    OptimizerEntry entry;
    for (const auto& [name, item] : value.as_dict().items) {
      if (!name.is(Kind::string)) continue;
      const std::string state(name.as_string());
      if (state == "step") {
        if (!item.is_none()) entry.step = {&archive, item};
        continue;
      }
      const bool is_tensor = TorchArchive::is_tensor(item);
      if (is_tensor && !archive.info(item).shape.empty()) {
        entry.tensors.push_back({state, archive.tensor(item)});
        if (!entry.shape) entry.shape = archive.info(item).shape;
      } else {
        entry.others.push_back({state, {&archive, item}});
      }
    }
    optimizer.states.emplace(optimizer_key(key), std::move(entry));
  }
  // A parameter without dimensions has states without.
  return optimizer;
}

// True if its parameters are as many as those of the model that may be trained, and of their
// shapes.
bool fits(const OptimizerDict& optimizer, const std::vector<ModelEntry>& model) {
  std::vector<Shape> trained;
  std::set<std::string> places;  // tied parameters count once
  for (const ModelEntry& entry : model) {
    if (!may_be_trained(entry.value.dtype(), entry.name)) continue;
    if (!entry.place.empty() && !places.insert(entry.place).second) continue;
    trained.push_back(entry.value.shape());
  }
  std::vector<Shape> own;
  size_t count = 0;
  for (const OptimizerDict::Group& group : optimizer.groups) {
    count += group.params.size();
    for (const std::string& key : group.params) {
      const auto state = optimizer.states.find(key);
      if (state != optimizer.states.end() && state->second.shape) {
        own.push_back(*state->second.shape);
      }
    }
  }
  if (count != trained.size()) return false;
  if (own.size() < count) return true;  // it has stepped none, or keeps no states
  std::sort(own.begin(), own.end());
  std::sort(trained.begin(), trained.end());
  return own == trained;
}

bool probe_training(CheckpointDraft& draft) {
  return !draft.folder.training.optimizer.empty();
}

const Shard& open_file(CheckpointDraft& draft, const std::filesystem::path& path) {
  const FileId id = draft.inputs.add(path, path.parent_path());
  draft.module_shards.push_back({.name = {.kind = ShardName::Kind::model_states},
                                 .path = path,
                                 .display = draft.inputs[id].display(),
                                 .archive = TorchArchive::open(draft.inputs, id)});
  return draft.module_shards.back();
}

// Names of the hub become the module's, which the optimizer has.
void read_files(CheckpointDraft& draft) {
  const TrainingPaths& paths = draft.folder.training;
  const Shard& shard = open_file(draft, paths.optimizer);
  const OptimizerDict optimizer = in_context({.file = shard.display}, [&] {
    const TrainingFile file = training_file(shard.archive.root());
    if (file.optimizers.size() == 1) {
      return optimizer_dict(shard.archive, file.optimizers.front().dict);
    }
    throw InconsistentError({}, "has no optimizer's state_dict");
  });
  Weights weights = Weights::open(draft.inputs, paths.weights, {.of_model = true});
  const WeightNames names{.as_module = true};
  std::vector<ModelEntry> entries;
  const ModuleTensors made = as_module_has(weights, paths.weights, names, nullptr, draft.notes);
  for (const WeightsTensor& tensor : made.tensors) {
    const std::string& owner = tensor.alias_of.empty() ? tensor.name : tensor.alias_of;
    const bool has_elements = tensor.value.numel() > 0;
    entries.push_back({tensor.name, tensor.value, has_elements ? owner : std::string()});
  }
  for (const OpaqueTensor& opaque : weights.unread()) draft.valueless.push_back(opaque.path);
  draft.notes.insert(draft.notes.end(), weights.notes().begin(), weights.notes().end());
  draft.weights = std::move(weights).take_files();
  const bool in_order =
      std::all_of(draft.weights.begin(), draft.weights.end(),
                  [](const WeightsFile& file) { return file.archive != nullptr; });
  read_state_dicts(draft, std::move(entries), &optimizer, in_order && draft.weights.size() == 1);
}

void read_training(CheckpointDraft& draft) {
  refuse_foreign_options(draft, "a training without ranks");
  if (draft.folder.training.weights != draft.folder.training.optimizer) return read_files(draft);
  const Shard& shard = open_file(draft, draft.folder.training.optimizer);
  const TorchArchive& archive = shard.archive;
  const std::string& display = shard.display;
  in_context({.file = display}, [&] {
    const TrainingFile file = training_file(archive.root());
    const KeyedDict& model = chosen_model(draft.options.model, file, display);
    std::vector<ModelEntry> entries = model_entries(draft, archive, model.dict);
    std::vector<OptimizerDict> optimizers;
    for (const KeyedDict* each : optimizers_of(file, model)) {
      optimizers.push_back(optimizer_dict(archive, each->dict));
    }
    if (optimizers.size() > 1) {
      std::erase_if(optimizers, [&](const OptimizerDict& each) { return !fits(each, entries); });
      const bool is_needed = optimizers.size() != 1 && draft.options.optimizer_states;
      if (is_needed) throw several_optimizers(file, display);
    }
    read_state_dicts(draft, std::move(entries),
                     optimizers.size() == 1 ? &optimizers.front() : nullptr);
    if (file.step && !draft.facts.global_steps) draft.facts.global_steps = *file.step;
  });
}

}  // namespace

const Layout kTraining{"training-file", probe_training, read_training, true};

}  // namespace dsckpt
