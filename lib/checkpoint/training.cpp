// One file of a whole training: the model's state_dict and the optimizer's, as torch's tutorials,
// Lightning and many programs of their own save them.
// Layout: LAYOUTS.md; source: lightning/pytorch/trainer/connectors/checkpoint_connector.py
// dump_checkpoint, torch/optim/optimizer.py state_dict.

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/text.h"
#include "checkpoint/layout.h"
#include "checkpoint/state_dicts.h"
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
    draft.notes.push_back("'" + printable(opaque.path) + "' is a tensor of a kind that is not " +
                          "read (" + opaque.kind + ")");
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

bool probe_training(CheckpointDraft& draft) {
  return !draft.folder.training_file.empty();
}

void read_training(CheckpointDraft& draft) {
  refuse_foreign_options(draft, "a file of a whole training");
  const FileId id =
      draft.inputs.add(draft.folder.training_file, draft.folder.training_file.parent_path());
  const std::string display = draft.inputs[id].display();
  draft.module_shards.push_back({.name = {.kind = ShardName::Kind::model_states},
                                 .path = draft.folder.training_file,
                                 .display = display,
                                 .archive = TorchArchive::open(draft.inputs, id)});
  const TorchArchive& archive = draft.module_shards.back().archive;
  in_context({.file = display}, [&] {
    const TrainingFile file = training_file(archive.root());
    const KeyedDict& model = chosen_model(draft.model, file, display);
    const KeyedDict* of_model = optimizer_of(file, model, display);
    std::optional<OptimizerDict> optimizer;
    if (of_model != nullptr) optimizer = optimizer_dict(archive, of_model->dict);
    read_state_dicts(draft, model_entries(draft, archive, model.dict),
                     optimizer ? &*optimizer : nullptr);
    if (file.step && !draft.facts.global_steps) draft.facts.global_steps = *file.step;
  });
}

}  // namespace

const Layout kTraining{"training-file", probe_training, read_training};

}  // namespace dsckpt
