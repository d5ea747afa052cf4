// The step and the parameters of a saved state, as its files have them.

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/bytes.h"
#include "base/json.h"
#include "base/text.h"
#include "checkpoint/find/rank_name.h"
#include "checkpoint/find/saved_states.h"
#include "deepspeed/keys.h"
#include "deepspeed/shard_name.h"
#include "dsckpt/error.h"
#include "format/dcp_metadata.h"
#include "format/rank_tensor.h"
#include "format/safetensors.h"
#include "format/torch_archive.h"
#include "format/training_file.h"
#include "io/content_name.h"
#include "io/far_files.h"
#include "io/input_file.h"

namespace dsckpt {
namespace fs = std::filesystem;
namespace {

using pickle::Kind;
using pickle::Value;
using Params = std::vector<std::pair<std::string, Shape>>;

constexpr uint64_t kMostJson = 64 << 20;
constexpr size_t kStepsRead = 8;  // of parameters; most have been stepped alike

void raise_step(std::optional<int64_t>& step, std::optional<double> number) {
  constexpr double kMost = 1e15;
  if (!number || !(*number >= 0 && *number < kMost)) return;
  step = std::max(step.value_or(0), static_cast<int64_t>(*number));
}

// transformers/trainer_callback.py TrainerState, beside the files or above a tag's folder. Above
// files of the Trainer's own there is that of the whole training.
std::optional<int64_t> trainer_step(const SavedState& state) {
  const bool is_tag = state.kind != StateKind::training && state.kind != StateKind::weights;
  for (const fs::path& folder : {state.folder, state.folder.parent_path()}) {
    if (folder != state.folder && !is_tag) break;
    try {
      const fs::path path = folder / "trainer_state.json";
      if (!is_stored(path)) continue;
      const InputFile file(path);
      if (file.size() > kMostJson) continue;
      const auto bytes = file.read(0, file.size());
      const nlohmann::json trainer = parse_json(as_text(bytes));
      if (trainer.is_object() && trainer.contains("global_step") &&
          trainer["global_step"].is_number_unsigned()) {
        return trainer["global_step"].get<int64_t>();
      }
    } catch (const Error&) {  // another file may say it
    }
  }
  return std::nullopt;
}

// Names and shapes of a dict of tensors, or of sizes.
void add_params(const TorchArchive& archive, const Value& dict, Params& params) {
  if (!dict.is_mapping()) return;
  for (const auto& [key, value] : dict.as_dict().items) {
    if (!key.is(Kind::string)) continue;
    Shape shape;
    if (const auto part = rank_tensor(archive, value)) {
      shape = part->shape;
    } else if (TorchArchive::is_tensor(value)) {
      shape = archive.info(value).shape;
      if (numel(shape) == 0) shape.clear();  // what stage 3 leaves in `module`
    } else if (value.is(Kind::object) && value.as_object().is_a("torch", "Size")) {
      shape = shape_from_pickle(value);
    } else {
      continue;
    }
    params.emplace_back(key.as_string(), std::move(shape));
  }
}

void look_into_shards(Folders& folders, SavedState& state) {
  std::vector<fs::path> files;
  for (const fs::path& file : folders[state.folder].files) {
    const auto name = parse_shard_name(file.filename().string());
    if (name && (name->kind == ShardName::Kind::model_states ||
                 name->kind == ShardName::Kind::zero_model_states)) {
      files.push_back(file);
    }
  }
  if (files.empty()) throw InconsistentError({}, "has no model_states file");
  InputFiles inputs;
  const TorchArchive archive = TorchArchive::open(inputs, inputs.add(files.front()));
  const Value& root = archive.root();
  if (const Value step = root.find_or_none(keys::kGlobalSteps); step.is(Kind::integer)) {
    raise_step(state.step, static_cast<double>(step.as_int()));
  }
  add_params(archive, root.find_or_none(keys::kModule), state.params);
  if (!state.params.empty()) return;
  for (const Value& group : root.find_or_none(keys::kParamShapes).sequence_or_empty()) {
    add_params(archive, group, state.params);
  }
}

void look_into_dcp(SavedState& state) {
  InputFiles inputs;
  for (const fs::path& metadata : state.dcp_metadata) {
    const DcpMetadata read = read_dcp_metadata(inputs[inputs.add(metadata)]);
    size_t steps = 0;
    for (const DcpValue& value : read.values) {
      const bool is_step = value.name == "step" || value.name == "global_step" ||
                           value.name.ends_with(".step") || value.name.ends_with(".global_step");
      if (value.tensor && !is_step) state.params.emplace_back(value.name, value.tensor->shape);
      if (!is_step || steps == kStepsRead || !value.unsupported.empty()) continue;
      const DcpPlace* place = &value.pickle;
      if (value.tensor) {
        if (value.tensor->chunks.empty()) continue;
        place = &value.tensor->chunks.front().place;
      }
      const auto path = dcp_file_path(metadata.parent_path(), place->file);
      if (!path || !is_stored(*path)) continue;
      const FileId file = inputs.add(*path);
      const TorchArchive archive = TorchArchive::open(inputs, {file, place->offset, place->size});
      raise_step(state.step, archive.scalar(archive.root()));
      ++steps;
    }
  }
}

// An optimizer's state_dict: how often it stepped.
void raise_steps(SavedState& state, const TorchArchive& optimizer, const Value& dict) {
  const Value states = dict.find_or_none("state");
  if (!states.is_mapping()) return;
  size_t steps = 0;
  for (const auto& [key, value] : states.as_dict().items) {
    if (++steps > kStepsRead) break;
    const Value step = value.find_or_none("step");
    if (!step.is_none()) raise_step(state.step, optimizer.scalar(step));
  }
}

// The model's names and shapes in a file of torch.save, by the key of each model.
void add_models(SavedState& state, const TorchArchive& archive, const TrainingFile& file) {
  for (const KeyedDict& model : file.models) {
    Params own;
    add_params(archive, model.dict, own);
    for (auto& [name, shape] : own) {
      state.params.emplace_back(model.key.empty() ? name : model.key + " " + name,
                                std::move(shape));
    }
  }
}

// The file itself may say its step; else it is how often the optimizers stepped.
void look_into_file(SavedState& state, const TorchArchive& archive) {
  const TrainingFile file = training_file(archive.root());
  add_models(state, archive, file);
  if (file.step) {
    raise_step(state.step, static_cast<double>(*file.step));
    return;
  }
  for (const KeyedDict& optimizer : file.optimizers) raise_steps(state, archive, optimizer.dict);
}

// The weights' names need not be opened: the optimizer has as many parameters of the same shapes.
void look_into_training(SavedState& state) {
  InputFiles inputs;
  const TorchArchive archive = TorchArchive::open(inputs, inputs.add(state.training.optimizer));
  if (state.is_file()) return look_into_file(state, archive);
  if (training_file(archive.root()).optimizers.empty()) {
    throw InconsistentError({.file = shown_path(state.training.optimizer)},
                            "has no optimizer's state_dict");
  }
  raise_steps(state, archive, archive.root());
  const Value states = archive.root().find_or_none("state");
  if (!states.is_mapping()) return;
  for (const auto& [key, value] : states.as_dict().items) {
    if (!value.is_mapping()) continue;
    const std::string param = optimizer_key(key);
    Params own;
    add_params(archive, value, own);
    for (auto& [name, shape] : own) {
      if (name != "step") state.params.emplace_back(param + " " + name, std::move(shape));
    }
  }
}

void look_into_weights(SavedState& state) {
  if (is_weights_index(state.training.weights)) {
    for (const auto& [name, file] : read_weights_index(state.training.weights).files) {
      state.params.emplace_back(name, Shape{});
    }
    return;
  }
  if (const auto missing = missing_siblings({state.training.weights}); !missing.empty()) {
    throw InconsistentError({.file = shown_path(missing.front())}, "is missing");
  }
  for (const fs::path& path : with_siblings(state.training.weights)) {
    InputFiles inputs;
    const FileId id = inputs.add(path);
    if (!SafetensorsFile::probe(inputs[id])) {
      const TorchArchive archive = TorchArchive::open(inputs, id);
      add_models(state, archive, training_file(archive.root()));
      continue;
    }
    const SafetensorsFile file = SafetensorsFile::open(inputs, id);
    for (const SafetensorsEntry& entry : file.entries()) {
      state.params.emplace_back(entry.name, entry.shape);
    }
  }
}

// A rank that is missing is named when all of them are opened.
void look_into_rank_files(Folders& folders, SavedState& state) {
  InputFiles inputs;
  RankName model{.front = state.rank_name.first, .back = state.rank_name.second};
  std::optional<uint32_t> first;
  for (const fs::path& file : folders[state.folder].files) {
    const auto name = parse_rank_name(file.filename().string());
    if (!name || name->front != model.front || name->back != model.back) continue;
    first = std::min(first.value_or(name->rank), name->rank);
  }
  model.rank = first.value_or(0);
  const TorchArchive archive =
      TorchArchive::open(inputs, inputs.add(state.folder / model.of_rank(model.rank)));
  add_params(archive, archive.root(), state.params);
  if (state.params.empty() && archive.root().is_mapping()) {
    for (const auto& [key, value] : archive.root().as_dict().items) {
      add_params(archive, value, state.params);
    }
  }
  const std::string optimizer = model.sibling("optim");
  if (optimizer.empty() || !is_stored(state.folder / optimizer)) return;
  const TorchArchive states = TorchArchive::open(inputs, inputs.add(state.folder / optimizer));
  raise_steps(state, states, states.root());
}

}  // namespace

bool has_rank_tensors(const Value& root) {
  const auto has_some = [](const Value& dict) {
    if (!dict.is_mapping()) return false;
    const auto& items = dict.as_dict().items;
    return std::any_of(items.begin(), items.end(),
                       [](const auto& item) { return is_rank_tensor(item.second); });
  };
  if (has_some(root)) return true;
  if (!root.is_mapping()) return false;
  const auto& items = root.as_dict().items;
  return std::any_of(items.begin(), items.end(),
                     [&](const auto& item) { return has_some(item.second); });
}

bool has_rank_tensors(const fs::path& path) {
  try {
    if (!is_stored(path)) return false;
    InputFiles inputs;
    return has_rank_tensors(TorchArchive::open(inputs, inputs.add(path)).root());
  } catch (const Error& error) {
    if (error.kind() == ErrorKind::io) throw;
    return false;
  }
}

namespace {

FileContent read_content(const fs::path& path) {
  std::error_code failed;
  if (!fs::is_regular_file(stored_path(path).value_or(path), failed)) return FileContent::other;
  try {
    InputFiles inputs;
    const FileId id = inputs.add(path);
    if (SafetensorsFile::probe(inputs[id])) return FileContent::other;
    const TorchArchive archive = TorchArchive::open(inputs, id);
    if (!shard_by_keys(archive.root()).empty()) return FileContent::other;
    const TrainingFile file = training_file(archive.root());
    const bool is_lightnings =
        archive.root().is_mapping() && archive.root().find("pytorch-lightning_version").has_value();
    if (!file.models.empty() && (!file.optimizers.empty() || is_lightnings)) {
      return FileContent::training;
    }
    return file.optimizers.empty() ? FileContent::other : FileContent::optimizer;
  } catch (const Error& error) {
    if (error.kind() == ErrorKind::interrupted) throw;
    const bool is_damaged = error.is_damage() || error.kind() == ErrorKind::io;
    return is_damaged ? FileContent::unreadable : FileContent::other;
  }
}

}  // namespace

FileContent file_content(Folders& folders, const fs::path& path) {
  const auto known = folders.contents.find(path);
  if (known != folders.contents.end()) return known->second;
  return folders.contents[path] = read_content(path);
}

bool is_training_file(Folders& folders, const fs::path& path) {
  const FileContent content = file_content(folders, path);
  return content == FileContent::training || content == FileContent::optimizer;
}

void look_into(Folders& folders, SavedState& state) {
  if (!state.damage.empty()) return;
  try {
    switch (state.kind) {
      case StateKind::zero:
      case StateKind::universal:
        look_into_shards(folders, state);
        break;
      case StateKind::dcp:
        look_into_dcp(state);
        break;
      case StateKind::rank_files:
        look_into_rank_files(folders, state);
        break;
      case StateKind::training:
        look_into_training(state);
        break;
      case StateKind::weights:
        look_into_weights(state);
        break;
    }
    if (!state.step) state.step = trainer_step(state);
    std::sort(state.params.begin(), state.params.end());
  } catch (const Error& error) {
    if (error.kind() == ErrorKind::interrupted || error.kind() == ErrorKind::io) throw;
    state.damage = error.what();
  }
}

}  // namespace dsckpt
