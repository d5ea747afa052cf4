#include "checkpoint/weights.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <system_error>
#include <tuple>
#include <utility>

#include "base/bytes.h"
#include "base/json.h"
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
using nlohmann::json;
using pickle::Value;
namespace {

constexpr std::string_view kIndexSuffix = ".index.json";
constexpr uint64_t kMaxIndexBytes = 256 << 20;
// transformers/utils/__init__.py, peft/utils/constants.py, diffusers/utils/constants.py
constexpr std::array kStems = {"model", "pytorch_model", "adapter_model",
                               "diffusion_pytorch_model"};
constexpr std::array kSuffixes = {".safetensors", ".bin"};
// torch/distributed/checkpoint/_hf_utils.py SHARDED_FILE_NAME
constexpr std::string_view kShardFront = "shard-";

// "model-00001-of-00003.safetensors": what stands before and behind the number, it, and how many.
struct NumberedName {
  std::string front;
  std::string back;
  size_t digits = 0;
  uint64_t number = 0;
  uint64_t count = 0;

  std::string of_number(uint64_t which) const {
    std::string text = std::to_string(which);
    if (text.size() < digits) text.insert(0, digits - text.size(), '0');
    return front + text + back;
  }
};

constexpr std::string_view kOf = "-of-";
constexpr uint64_t kMostNumbered = 100000;

std::optional<NumberedName> numbered_name(const std::string& name) {
  const size_t of = name.rfind(kOf);
  if (of == name.npos) return std::nullopt;
  size_t begin = of;
  while (begin > 0 && std::isdigit(static_cast<unsigned char>(name[begin - 1])) != 0) --begin;
  size_t end = of + kOf.size();
  while (end < name.size() && std::isdigit(static_cast<unsigned char>(name[end])) != 0) ++end;
  const std::string number = name.substr(begin, of - begin);
  const std::string count = name.substr(of + kOf.size(), end - of - kOf.size());
  constexpr size_t kMostDigits = 9;
  if (!is_digits(number) || !is_digits(count) || number.size() > kMostDigits ||
      count.size() > kMostDigits) {
    return std::nullopt;
  }
  NumberedName parsed{name.substr(0, begin), name.substr(of), number.size(), std::stoull(number),
                      std::stoull(count)};
  if (parsed.number > parsed.count || parsed.count > kMostNumbered) return std::nullopt;
  return parsed;
}

// All files of the same count, those that are not there, too. Counted from 1, or from 0 where there
// is a 0.
std::vector<fs::path> with_siblings(const fs::path& path) {
  const auto name = numbered_name(content_path(path).filename().string());
  if (!name) return {path};
  std::vector<fs::path> all;
  const uint64_t first = is_stored(path.parent_path() / name->of_number(0)) ? 0 : 1;
  for (uint64_t i = 0; i < name->count; ++i) {
    all.push_back(path.parent_path() / name->of_number(first + i));
  }
  return all;
}

}  // namespace

std::vector<fs::path> missing_siblings(const std::vector<fs::path>& paths) {
  std::set<fs::path> missing;
  std::set<std::pair<fs::path, std::string>> seen;
  for (const fs::path& path : paths) {
    const auto name = numbered_name(content_path(path).filename().string());
    if (!name || !seen.emplace(path.parent_path(), name->front + name->back).second) continue;
    for (const fs::path& sibling : with_siblings(path)) {
      if (!is_stored(sibling)) missing.insert(sibling);
    }
  }
  return {missing.begin(), missing.end()};
}

namespace {

// The files of one model, in one form.
struct WeightsSet {
  std::string stem = {};    // "model" of "model-00001-of-00003.safetensors"
  std::string ending = {};  // ".safetensors"
  bool is_split = false;
  std::optional<fs::path> index = {};
  std::vector<fs::path> files = {};
  std::string name = {};  // for --model

  fs::path first() const { return index ? *index : files.front(); }
};

// Its stem, ending and form; nullopt for any other file.
std::optional<WeightsSet> set_of(const fs::path& path) {
  std::string name = path.filename().string();
  WeightsSet set;
  if (parse_shard_name(name) || !is_weights_name(path)) return std::nullopt;
  if (const auto rank = parse_rank_name(name); rank && rank->ranks) return std::nullopt;
  if (is_weights_index(path)) {
    set.is_split = true;
    set.index = path;
    name.resize(name.size() - kIndexSuffix.size());
  }
  if (const auto numbered = numbered_name(name)) {
    set.is_split = true;
    const size_t end = numbered->front.find_last_not_of("-_.");
    name = numbered->front.substr(0, end == name.npos ? 0 : end + 1) +
           fs::path(name).extension().string();
  }
  set.ending = fs::path(name).extension().string();
  set.stem = fs::path(name).stem().string();
  if (std::find(kSuffixes.begin(), kSuffixes.end(), set.ending) == kSuffixes.end()) {
    return std::nullopt;
  }
  return set;
}

// Files whose names frameworks give to the same model in another form: Mistral's, Accelerate's.
constexpr std::array kSameModel = {"model", "pytorch_model", "consolidated", "pytorch_model_fsdp"};
constexpr std::array kVariants = {".fp16", ".bf16", ".fp32"};  // of diffusers

std::string without_variant(const std::string& stem) {
  for (const std::string_view variant : kVariants) {
    if (stem.ends_with(variant)) return stem.substr(0, stem.size() - variant.size());
  }
  return stem;
}

// The same for forms of one model.
std::string family_of(const WeightsSet& set) {
  const std::string stem = without_variant(set.stem);
  const bool is_model = std::find(kSameModel.begin(), kSameModel.end(), stem) != kSameModel.end();
  return is_model ? kSameModel.front() : stem;
}

bool is_known(const WeightsSet& set) {
  return set.index || std::find(kStems.begin(), kStems.end(), set.stem) != kStems.end();
}

// Transformers' order.
auto place_of(const WeightsSet& set) {
  const auto stem = std::find(kStems.begin(), kStems.end(), without_variant(set.stem));
  const auto ending = std::find(kSuffixes.begin(), kSuffixes.end(), set.ending);
  return std::tuple(stem - kStems.begin(), set.stem.size(), ending - kSuffixes.begin(),
                    set.is_split, set.stem);
}

// Takes the files that indices name out of the other sets. An index of files that are not there is
// none beside other weights. One that cannot be read is the only set: its error is the answer.
void take_named(const fs::path& folder, std::vector<WeightsSet>& sets) {
  std::set<fs::path> named;
  const size_t count = sets.size();
  std::erase_if(sets, [&](WeightsSet& set) {
    if (!set.index || count == 1) return false;
    bool has_some = false;
    for (const auto& [tensor, file] : read_weights_index(*set.index).files) {
      named.insert(folder / file);
      has_some = has_some || is_stored(folder / file);
    }
    return !has_some;
  });
  std::erase_if(sets, [&](WeightsSet& set) {
    if (set.index) return false;
    std::erase_if(set.files, [&](const fs::path& file) { return named.contains(file); });
    return set.files.empty();
  });
}

std::vector<WeightsSet> weights_sets(Folders& folders, const fs::path& folder) {
  std::map<std::tuple<std::string, std::string, bool>, WeightsSet> found;
  const ListedFolder& listed = folders[folder];
  for (const auto* paths : {&listed.files, &listed.folders}) {  // a folder is no file, and says so
    for (const fs::path& path : *paths) {
      const auto own = set_of(path);
      if (!own) continue;
      WeightsSet& set =
          found.try_emplace({own->stem, own->ending, own->is_split}, *own).first->second;
      if (own->index) set.index = own->index;
      if (!own->index) set.files.push_back(path);
    }
  }
  std::vector<WeightsSet> sets;
  for (auto& [key, set] : found) sets.push_back(std::move(set));
  std::sort(sets.begin(), sets.end(),
            [](const WeightsSet& a, const WeightsSet& b) { return place_of(a) < place_of(b); });
  take_named(folder, sets);
  for (WeightsSet& set : sets) {
    set.name = set.stem;
    const auto same = std::count_if(
        sets.begin(), sets.end(), [&](const WeightsSet& other) { return other.stem == set.stem; });
    if (same > 1) set.name = set.first().filename().string();
  }
  return sets;
}

// Files of names that nobody knows may be the parts of one model.
void join_unknown(std::vector<WeightsSet>& sets) {
  if (sets.size() < 2 || std::any_of(sets.begin(), sets.end(), is_known)) return;
  WeightsSet joined{.ending = sets.front().ending};
  for (const WeightsSet& set : sets) {
    if (set.ending != joined.ending) continue;
    joined.files.insert(joined.files.end(), set.files.begin(), set.files.end());
  }
  std::sort(joined.files.begin(), joined.files.end());
  if (joined.ending == kSuffixes.front()) sets = {std::move(joined)};
}

// Leaves the one to read where all are forms of it. An adapter is beside its base model.
std::string take_first_form(std::vector<WeightsSet>& sets) {
  constexpr std::string_view kAdapter = "adapter_model";
  const WeightsSet& first = sets.front();
  std::string left;
  for (size_t i = 1; i < sets.size(); ++i) {
    const WeightsSet& other = sets[i];
    const bool is_form = family_of(other) == family_of(first) &&
                         (other.stem != first.stem || other.ending != first.ending);
    const bool is_adapter = other.stem == kAdapter && family_of(first) == kSameModel.front();
    if (!is_form && !is_adapter) return "";
    left += (left.empty() ? "" : ", ") + other.first().filename().string();
  }
  sets.resize(1);
  if (left.empty()) return "";
  return "reading " + sets.front().first().filename().string() +
         "; beside it, and left out: " + left +
         " (--model reads another: its name without the ending)";
}

// One for each model, and for each form of one.
std::vector<SavedState> states_of_weights(Folders& folders, const fs::path& folder) {
  std::vector<SavedState> states;
  for (const WeightsSet& set : weights_sets(folders, folder)) {
    SavedState state{.kind = StateKind::weights, .folder = folder, .named = folder};
    state.model = set.name;
    state.training.weights = set.first();
    state.file = set.first();
    states.push_back(std::move(state));
  }
  return states;
}

}  // namespace

FoundWeights find_weights(Folders& folders, const fs::path& folder, const std::string& model) {
  std::vector<WeightsSet> sets = weights_sets(folders, folder);
  FoundWeights found{.model = model};
  const auto is_called = [&](const WeightsSet& set) {
    return !model.empty() && (set.name == model || set.stem == model);
  };
  if (std::any_of(sets.begin(), sets.end(), is_called)) {
    std::erase_if(sets, [&](const WeightsSet& set) { return !is_called(set); });
    found.model.clear();
  } else {
    join_unknown(sets);
  }
  if (sets.empty()) return found;
  found.note = take_first_form(sets);
  if (sets.size() > 1) {
    const std::vector<SavedState> states = states_of_weights(folders, folder);
    choose(folder, of_model(folder, states, found.model));
  }
  if (!found.model.empty() && sets.front().ending == kSuffixes.front()) {
    throw no_such_model(found.model, folder.string());
  }
  found.files = sets.front().index ? std::vector{*sets.front().index} : sets.front().files;
  return found;
}

bool is_weights_index(const fs::path& path) {
  return path.string().ends_with(kIndexSuffix);
}

bool is_weights_name(const fs::path& path) {
  const std::string name = content_path(path).filename().string();
  const auto starts = [&](const char* stem) { return name.starts_with(stem); };
  const auto ends = [&](const char* suffix) { return name.ends_with(suffix); };
  return is_weights_index(name) || name.ends_with(kSuffixes.front()) ||
         (std::any_of(kStems.begin(), kStems.end(), starts) &&
          std::any_of(kSuffixes.begin(), kSuffixes.end(), ends));
}

WeightsIndex read_weights_index(const fs::path& path) {
  const InputFile file(path);
  return in_context({.file = path.string()}, [&] {
    if (file.size() > kMaxIndexBytes) throw CorruptError({}, "is too long to be an index");
    const std::vector<std::byte> bytes = file.read(0, file.size());
    const json index = parse_json(as_text(bytes));
    if (!index.is_object() || !index.contains("weight_map") || !index["weight_map"].is_object()) {
      throw CorruptError({}, "is not an index: it has no object \"weight_map\"");
    }
    WeightsIndex read;
    for (const auto& [name, where] : index["weight_map"].items()) {
      const fs::path named = where.is_string() ? where.get<std::string>() : std::string();
      if (named.empty() || named.is_absolute() ||
          std::any_of(named.begin(), named.end(), [](const fs::path& p) { return p == ".."; })) {
        throw CorruptError({.tensor = name}, "is in no file of the folder");
      }
      read.files.emplace(name, named.string());
    }
    const json metadata = index.value("metadata", json());
    if (metadata.is_object() && metadata.contains("total_size") &&
        metadata["total_size"].is_number_unsigned()) {
      read.total_size = metadata["total_size"].get<uint64_t>();
    }
    return read;
  });
}

bool Weights::probe(Folders& folders, const fs::path& path) {
  std::error_code failed;
  const fs::file_status status = fs::status(stored_path(path).value_or(path), failed);
  if (fs::is_regular_file(status)) return true;
  return fs::is_directory(status) && !states_of_weights(folders, path).empty();
}

namespace {

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
  } else if (const auto own = set_of(content_path(path)); own && own->stem == model) {
    model.clear();
  }
  const fs::path index_path = paths.front();
  if (is_weights_index(index_path)) {
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
        throw InconsistentError({.file = display, .tensor = name},
                                "is in " + display_of(at->second) + " too");
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

// Weights and the shards of tags beside them, without a `latest` that would prefer these.
void refuse_tags_beside(Folders& folders, const fs::path& folder) {
  std::vector<fs::path> found;
  for (const fs::path& child : folders[folder].folders) {
    if (child.filename().string().starts_with(".")) continue;
    for (const SavedState& state : states_in(folders, child)) {
      if (state.folder == child && state.kind == StateKind::zero) found.push_back(child);
    }
  }
  if (found.empty()) return;
  const fs::path weights = find_weights(folders, folder).files.front();
  std::vector<std::string> lines{weights.filename().string()};
  for (const fs::path& tag : found) lines.push_back(tag.filename().string());
  throw InconsistentError({.file = folder.string()},
                          "holds weights and shards, and no `latest`:" + listed(lines))
      .with_hint("give one of them: " + shell_word(weights.string()) + " or " +
                 shell_word(found.back().string()));
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
  if (only && fs::is_directory(path, failed)) refuse_tags_beside(folders, path);
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
         !is_rank_file(path) && !is_training_file(path);
}

}  // namespace dsckpt
