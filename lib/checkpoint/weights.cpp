#include "checkpoint/weights.h"

#include <algorithm>
#include <array>
#include <map>
#include <optional>
#include <set>
#include <system_error>
#include <tuple>
#include <utility>

#include "base/keyed_hash.h"
#include "base/text.h"
#include "checkpoint/find/choose.h"
#include "checkpoint/find/folders.h"
#include "checkpoint/find/rank_name.h"
#include "checkpoint/find/saved_states.h"
#include "checkpoint/state_dicts.h"
#include "checkpoint/weights_chunks.h"
#include "deepspeed/shard_name.h"
#include "dsckpt/error.h"
#include "io/content_name.h"
#include "io/opening_files.h"

namespace dsckpt {
namespace fs = std::filesystem;
using pickle::Value;
namespace {

// torch/distributed/checkpoint/_hf_utils.py SHARDED_FILE_NAME
constexpr std::string_view kShardFront = "shard-";

}  // namespace

FoundWeights find_weights(Folders& folders, const fs::path& folder, const std::string& model) {
  std::vector<WeightsSet> sets = weights_sets(folders, folder);
  FoundWeights found{.model = model};
  const auto is_called = [&](const WeightsSet& set) {
    return !model.empty() && (set.name == model || set.stem == model);
  };
  const std::vector<WeightsSet> all = sets;
  if (std::any_of(sets.begin(), sets.end(), is_called)) {
    std::erase_if(sets, [&](const WeightsSet& set) { return !is_called(set); });
    found.model.clear();
  } else {
    join_unknown(sets);
  }
  if (sets.empty()) return found;
  found.note = take_first_form(sets);
  if (sets.size() > 1) {
    choose(folder, of_model(folders, folder, states_of(folder, all), found.model).states);
  }
  if (!found.model.empty() && sets.front().ending == ".safetensors") {
    throw no_such_model(found.model, folder.string());
  }
  found.files = sets.front().index ? std::vector{*sets.front().index} : sets.front().files;
  return found;
}

bool Weights::probe(Folders& folders, const fs::path& path) {
  std::error_code failed;
  const fs::file_status status = fs::status(stored_path(path).value_or(path), failed);
  if (fs::is_regular_file(status)) return true;
  return fs::is_directory(status) && !weights_sets(folders, path).empty();
}

namespace {

// True if the dict, or a dict in it, has tensors that are not one rank's parts.
bool has_whole_tensors(const Value& dict, bool in_root = true) {
  if (!dict.is_mapping()) return false;
  const auto& items = dict.as_dict().items;
  return std::any_of(items.begin(), items.end(), [&](const auto& item) {
    return TorchArchive::is_tensor(item.second) ||
           (in_root && has_whole_tensors(item.second, false));
  });
}

// The dict of the model's tensors in a file, and what its names have in front there.
Value model_in(const TorchArchive& archive, const std::string& display, const std::string& name,
               std::vector<std::string>& notes) {
  const Value& root = archive.root();
  if (const std::string_view shard = shard_by_keys(root); !shard.empty()) {
    throw InconsistentError({.file = display},
                            "is not a file of weights but, by its keys, a shard of DeepSpeed (" +
                                std::string(shard) + ")")
        .with_hint(
            "give the folder that has all shards of the checkpoint, under the names that "
            "DeepSpeed gave them");
  }
  if (has_rank_tensors(root) && !has_whole_tensors(root)) {
    throw InconsistentError({.file = display},
                            "is not a file of weights but one rank's: it has the rank's parts of "
                            "tensors (DTensor, ShardedTensor)")
        .with_hint(
            "give the folder that has the files of all ranks, under the names that the program "
            "gave them: model_world_size_4_rank_0.pt");
  }
  const TrainingFile file = training_file(root);
  // Without an optimizer, dicts among the tensors of a state_dict are parts of it.
  const bool is_one = file.models.size() < 2 || file.models.front().key.empty();
  if (file.optimizers.empty() && is_one && name.empty()) return root;
  const KeyedDict& model = chosen_model(name, file, display);
  if (!model.key.empty()) {
    notes.push_back("of " + display + " the model is read, under '" + printable(model.key) +
                    "'; the rest of it is left out");
  }
  return model.dict;
}

// Tensors that no state_dict calls so: one without any name, and those of a module itself.
void refuse_no_name(const std::string& path, const std::string& display) {
  const std::string dotted = "." + path;
  const bool of_module =
      dotted.find("._parameters.") != dotted.npos || dotted.find("._buffers.") != dotted.npos;
  if (!path.empty() && !of_module) return;
  throw UnsupportedError({.file = display},
                         of_module ? "is a module, saved as a whole, and not its state_dict"
                                   : "is a tensor without a name, and not a model's state_dict")
      .with_hint("save the names and tensors: torch.save(model.state_dict(), FILE)");
}

}  // namespace

std::map<std::string, std::string> metadata_of(const std::vector<WeightsFile>& files) {
  std::map<std::string, std::string> all;
  for (const WeightsFile& file : files) {
    if (file.safetensors == nullptr) continue;
    for (const auto& [key, text] : file.safetensors->metadata()) all[key] = text;
  }
  return all;
}

Weights Weights::open(InputFiles& inputs, const fs::path& path, const Options& options) {
  Weights weights;
  std::vector<fs::path> paths = options.of_model ? with_siblings(path) : std::vector{path};
  std::string model = options.model;  // that is to be found in the files
  fs::path root;
  std::optional<std::map<std::string, std::string>> index;
  std::error_code failed;
  if (fs::is_directory(path, failed)) {
    root = path;
    const auto folders = options.folders ? options.folders : std::make_shared<Folders>();
    FoundWeights found = find_weights(*folders, path, options.model);
    paths = std::move(found.files);
    model = std::move(found.model);
    if (!found.note.empty()) weights.notes_.push_back(std::move(found.note));
    if (paths.empty()) throw InconsistentError({.file = path.string()}, "holds no weights");
  } else if (weights_stem(path) == model) {
    model.clear();
  }
  const fs::path index_path = paths.front();
  if (is_weights_index(index_path)) {
    root = index_path.parent_path();
    index = read_weights_index(index_path).files;
    std::set<std::string> names;
    for (const auto& [tensor, file] : *index) names.insert(file);
    paths.clear();
    std::string missing;
    for (const std::string& name : names) {
      paths.push_back(root / name);
      if (!is_stored(paths.back())) missing += (missing.empty() ? "" : ", ") + name;
    }
    if (!missing.empty() && !options.allow_missing) {
      throw InconsistentError({.file = index_path.string()},
                              "names files that are missing: " + missing)
          .with_hint(
              "fetch these again, or read the other files alone with zero-to-fp32 --allow-missing");
    }
  }
  if (options.of_model || !root.empty()) {
    const std::vector<fs::path> missing = missing_siblings(paths);
    if (!missing.empty() && !options.allow_missing) {
      std::vector<std::string> names;
      for (const fs::path& file : missing) names.push_back(file.filename().string());
      throw InconsistentError({.file = path.string()},
                              counted(names.size(), "file") + (names.size() == 1 ? " is" : " are") +
                                  " missing by the names of the others:" + listed(names))
          .with_hint("zero-to-fp32 --allow-missing reads the others alone");
    }
    paths.insert(paths.end(), missing.begin(), missing.end());
  }
  if (options.allow_missing) {
    std::erase_if(paths, [&](const fs::path& file) {
      if (is_stored(file)) return false;
      const std::string name = file.filename().string();
      if (std::find(weights.missing_.begin(), weights.missing_.end(), name) ==
          weights.missing_.end()) {
        weights.missing_.push_back(name);
      }
      return true;
    });
    if (paths.empty()) throw InconsistentError({.file = path.string()}, "has none of its files");
  }

  KeyedMap<std::string, size_t> file_of;  // by the tensors' names, of weights.files_
  std::vector<FileId> ids;
  const auto display_of = [&](size_t file) { return inputs[ids[file]].display(); };
  WeightsChunks chunks;
  KeyedMap<std::string, size_t> of_chunks;  // the first file of each
  size_t shards = 0;
  NamesSize owners;
  const OpeningFiles opening(inputs.progress(), paths.size());
  for (const fs::path& file_path : paths) {
    opening.throw_if_cancelled();
    if (!root.empty()) refuse_two_forms(file_path);
    WeightsFile file{file_path, inputs.add(file_path, root), nullptr, nullptr};
    ids.push_back(file.id);
    const std::string& display = inputs[file.id].display();
    KeyedMap<std::string, uint64_t> in_file;  // how often each path came
    const auto add = [&](std::string name, TensorSource value,
                         std::string alias_of) -> const std::string& {  // its name, until the next
      // {"a": {"b": x}, "a.b": y} is a whole file, though both are a.b.
      const uint64_t times = ++in_file[name];
      if (options.of_model && times > 1) {
        throw UnsupportedError({.file = display, .tensor = name},
                               "is the name of two tensors, whose keys differ in the file")
            .with_hint("save one dict of names and tensors: torch.save(model.state_dict(), FILE)");
      }
      if (times > 1) name += " #" + std::to_string(times);
      const auto [at, is_new] = file_of.emplace(name, ids.size() - 1);
      if (!is_new) {
        InconsistentError error({.file = display, .tensor = name},
                                "is in " + display_of(at->second) + " too");
        const std::string stem = weights_stem(file_path);
        if (root.empty() || stem == weights_stem(inputs[ids[at->second]].path())) throw error;
        throw std::move(error).with_hint("--model " + shell_word(stem) + " reads this file alone");
      }
      weights.tensors_.push_back({std::move(name), std::move(value), std::move(alias_of)});
      return weights.tensors_.back().name;
    };
    if (SafetensorsFile::probe(inputs[file.id])) {
      if (!model.empty()) throw no_such_model(model, display);
      file.safetensors = std::make_unique<SafetensorsFile>(SafetensorsFile::open(inputs, file.id));
      if (has_chunks(*file.safetensors)) {
        chunks.add(inputs[file.id], *file.safetensors);
        for (const SafetensorsEntry& entry : file.safetensors->entries()) {
          of_chunks.emplace(entry.name, ids.size() - 1);
        }
        if (file_path.filename().string().starts_with(kShardFront)) ++shards;
      } else {
        for (const SafetensorsEntry& entry : file.safetensors->entries()) {
          add(entry.name, file.safetensors->tensor(entry), "");
        }
      }
    } else {
      file.archive = std::make_unique<TorchArchive>(TorchArchive::open(inputs, file.id));
      using View = std::tuple<int64_t, Shape, Strides, DType>;
      KeyedMap<std::string, std::map<View, std::string>> views;  // by storage
      const Value root_value =
          options.of_model || !model.empty()
              ? in_context({.file = display},
                           [&] { return model_in(*file.archive, display, model, weights.notes_); })
              : file.archive->root();
      FoundTensors all = find_tensors(root_value);
      for (OpaqueTensor& opaque : all.opaque) {
        weights.notes_.push_back("'" + printable(opaque.path) +
                                 "' is a tensor of an unsupported kind (" + opaque.kind + ")");
        weights.unread_.push_back(std::move(opaque));
      }
      for (const FoundTensor& found : all.tensors) {
        if (found.is_piece) continue;
        if (options.of_model) refuse_no_name(found.path, display);
        const TensorInfo info =
            in_context({.tensor = found.path}, [&] { return file.archive->info(found.value); });
        std::string* first = nullptr;  // the name of the first such view
        if (numel(info.shape) > 0) {
          first =
              &views[info.storage_key][{info.storage_offset, info.shape, info.strides, info.dtype}];
        }
        const bool is_alias = first != nullptr && !first->empty();
        if (is_alias) in_context({.file = display}, [&] { owners.add(*first); });
        const std::string& name =
            add(found.path, file.archive->tensor(found.value), is_alias ? *first : "");
        if (first != nullptr && !is_alias) *first = name;
      }
    }
    weights.files_.push_back(std::move(file));
    opening.opened_one();
  }

  for (WeightsChunks::Whole& whole : std::move(chunks).take()) {
    const size_t first = of_chunks.at(whole.name);
    const auto [at, is_new] = file_of.emplace(whole.name, first);
    if (!is_new) {
      throw InconsistentError({.file = display_of(first), .tensor = whole.name},
                              "is a chunk, but in " + display_of(at->second) + " whole");
    }
    weights.tensors_.push_back({std::move(whole.name), std::move(whole.value), ""});
  }
  if (shards > 0) {
    weights.notes_.push_back("the tensors are joined from the chunks in " +
                             counted(shards, "shard") +
                             "; nothing in the files tells whether another follows the last");
  }

  if (index) {
    for (const auto& [tensor, file] : *index) {
      const auto at = file_of.find(tensor);
      if (at == file_of.end() && std::find(weights.missing_.begin(), weights.missing_.end(),
                                           file) != weights.missing_.end()) {
        continue;
      }
      if (at == file_of.end()) {
        throw InconsistentError({.file = file, .tensor = tensor},
                                "is not in the file that the index says it is in");
      }
      if (display_of(at->second) != file) {
        throw InconsistentError({.file = display_of(at->second), .tensor = tensor},
                                "is in " + file + " by the index");
      }
    }
  }
  return weights;
}

namespace {

bool has_state(Folders& folders, const fs::path& folder, Beside beside) {
  const std::vector<SavedState> states = states_in(folders, folder);
  return std::any_of(states.begin(), states.end(), [&](const SavedState& state) {
    return state.kind != StateKind::training || beside == Beside::optimizer;
  });
}

// Weights beside whole trainings or above other checkpoints, without a `latest` that prefers these.
void refuse_states_beside(Folders& folders, const fs::path& folder) {
  std::vector<SavedState> found = find_states(folders, folder);
  std::erase_if(found, [&](const SavedState& state) {
    if (state.is_file()) return folders.contents[state.named] != FileContent::training;
    return state.kind == StateKind::weights || state.folder == folder;
  });
  if (found.empty()) return;
  const fs::path weights = find_weights(folders, folder).files.front();
  std::vector<std::string> lines{weights.filename().string()};
  for (const SavedState& state : found) lines.push_back(state.below(folder).string());
  const bool are_files = std::all_of(found.begin(), found.end(),
                                     [](const SavedState& state) { return state.is_file(); });
  throw InconsistentError({.file = folder.string()},
                          (are_files ? "holds weights, and whole trainings in one file each:"
                                     : "holds weights and checkpoints, and no `latest`:") +
                              listed(lines))
      .with_hint("give one of them: " + shell_word(weights.string()) + " or " +
                 shell_word(found.back().given().string()));
}

// True if a file is one rank's part of tensors.
bool is_rank_file(const fs::path& path) {
  const auto name = parse_rank_name(content_path(path).filename().string());
  return name && (name->ranks || has_rank_tensors(path));
}

}  // namespace

bool holds_only_weights(Folders& folders, const fs::path& path, const std::string& tag,
                        Beside beside) {
  const bool only = tag.empty() && !is_latest(path) && !is_stored(path / "latest") &&
                    !is_stored(path / "latest_universal") && Weights::probe(folders, path) &&
                    !has_state(folders, path, beside);
  std::error_code failed;
  if (only && fs::is_directory(path, failed)) refuse_states_beside(folders, path);
  return only;
}

bool is_weights_input(Folders& folders, const fs::path& path, const std::string& tag,
                      Beside beside) {
  std::error_code failed;
  if (!fs::is_regular_file(path, failed)) return holds_only_weights(folders, path, tag, beside);
  const std::string name = content_path(path).filename().string();
  constexpr std::array kEndings{".safetensors", ".bin", ".pt", ".pth", ".index.json"};
  return !parse_shard_name(name) &&
         std::any_of(kEndings.begin(), kEndings.end(),
                     [&](const char* ending) { return name.ends_with(ending); }) &&
         !is_rank_file(path) && !is_training_file(folders, path);
}

TagFolder find_input(const fs::path& path, const FindOptions& options, Beside beside) {
  FindOptions listed = options;
  if (!listed.folders) listed.folders = std::make_shared<Folders>();
  if (!is_weights_input(*listed.folders, path, options.tag, beside)) {
    return find_tag_folder(path, listed);
  }
  if (!options.roots.empty()) throw no_roots_of_weights(path);
  TagFolder folder{.path = path};
  folder.training.weights = path;
  folder.model = options.model;
  folder.named = path;
  folder.folders = listed.folders;
  return folder;
}

}  // namespace dsckpt
