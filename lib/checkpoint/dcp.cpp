// torch.distributed.checkpoint (DCP), as FSDP2, Accelerate's and the Trainer's FSDP, torchtitan and
// Lightning save with it: a file `.metadata` and the chunks of all values in files beside it.
// Layout: LAYOUTS.md; source: torch/distributed/checkpoint/default_planner.py, state_dict.py
// (_init_optim_state, _flatten_optim_state_dict), _nested_dict.py.

#include <tbb/parallel_for.h>

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <system_error>
#include <tuple>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "base/keyed_hash.h"
#include "base/text.h"
#include "checkpoint/boxes.h"
#include "checkpoint/layout.h"
#include "dsckpt/error.h"
#include "format/dcp_metadata.h"
#include "io/opening_files.h"

namespace dsckpt {
namespace fs = std::filesystem;
namespace {

using pickle::Document;
using pickle::Kind;
using pickle::Value;

constexpr std::string_view kStateKey = "state";
constexpr std::string_view kGroupsKey = "param_groups";
constexpr std::string_view kParamsKey = "params";
constexpr std::string_view kStepKey = "step";

// A value of one of the folders.
struct DcpEntry {
  const DcpValue* value = nullptr;
  size_t folder = 0;

  const std::string& name() const { return value->name; }
  bool is_tensor() const { return value->tensor.has_value(); }
};

bool is_digits(std::string_view text) {
  return !text.empty() && text.find_first_not_of("0123456789") == text.npos;
}

std::string path_text(const std::vector<DcpStep>& path, size_t begin, size_t end) {
  std::string text;
  for (size_t i = begin; i < end; ++i) {
    if (i > begin) text += '.';
    const auto* name = std::get_if<std::string>(&path[i]);
    text += name != nullptr ? *name : std::to_string(std::get<int64_t>(path[i]));
  }
  return text;
}

bool is_path_step(const DcpStep& step, std::string_view text) {
  const auto* name = std::get_if<std::string>(&step);
  return name != nullptr && *name == text;
}

// Where `part`, one of the names between the dots of `key` or several, begins; npos if nowhere.
size_t find_part(std::string_view key, std::string_view part) {
  for (size_t at = key.find(part); at != key.npos; at = key.find(part, at + 1)) {
    const size_t end = at + part.size();
    if ((at == 0 || key[at - 1] == '.') && (end == key.size() || key[end] == '.')) return at;
  }
  return key.npos;
}

// The folder's values, and the files that they lie in.
class DcpFiles {
 public:
  explicit DcpFiles(CheckpointDraft& draft) : draft_(draft) {
    for (const fs::path& path : draft.folder.dcp_metadata) {
      refuse_megatron(path.parent_path());
      Folder& folder = folders_.emplace_back();
      folder.path = path.parent_path();
      folder.metadata_file = draft.inputs.add(path, draft.folder.display_root());
      folder.metadata = read_dcp_metadata(draft.inputs[folder.metadata_file]);
      draft.data_files.push_back({path, folder.metadata_file});
    }
    open_files();
    set_parts();
  }

  std::vector<DcpEntry> entries() const {
    std::vector<DcpEntry> entries;
    std::unordered_set<std::string_view, KeyedHash> names;
    for (size_t i = 0; i < folders_.size(); ++i) {
      for (const DcpValue& value : folders_[i].metadata.values) {
        if (!names.insert(value.name).second) {
          throw InconsistentError(
              {.file = display(folders_[i].metadata_file), .tensor = value.name},
              "is in " + display(folders_[0].metadata_file) + " too");
        }
        entries.push_back({&value, i});
      }
    }
    return entries;
  }

  FileId metadata_file(const DcpEntry& entry) const { return folders_[entry.folder].metadata_file; }
  std::string metadata_name(const DcpEntry& entry) const { return display(metadata_file(entry)); }

  Extent extent_of(const DcpEntry& entry, const DcpPlace& place) const {
    return {folders_[entry.folder].files.at(place.file), place.offset, place.size};
  }

  // The archive of a value that is one chunk, or none of tensors.
  TorchArchive open_value(const DcpEntry& entry) const {
    const DcpPlace* place = &entry.value->pickle;
    if (entry.is_tensor()) {
      const auto& chunks = entry.value->tensor->chunks;
      const auto whole = std::find_if(chunks.begin(), chunks.end(), [&](const DcpChunk& chunk) {
        return chunk.sizes == entry.value->tensor->shape;
      });
      if (whole == chunks.end()) {
        throw UnsupportedError({.file = metadata_name(entry), .tensor = entry.name()},
                               "is cut into chunks, where one number was expected");
      }
      place = &whole->place;
    }
    return in_context({.tensor = entry.name()},
                      [&] { return TorchArchive::open(draft_.inputs, extent_of(entry, *place)); });
  }

  // How many ranks have written, by the names of their files ("__RANK_NUMBER.distcp").
  uint32_t ranks() const {
    std::set<std::string> ranks;
    for (const Folder& folder : folders_) {
      for (const auto& [name, id] : folder.files) {
        const std::string file = fs::path(name).filename().string();
        if (!file.starts_with("__")) continue;
        const std::string rank = file.substr(2, file.find('_', 2) - 2);
        if (is_digits(rank)) ranks.insert(rank);
      }
    }
    return static_cast<uint32_t>(std::max<size_t>(1, ranks.size()));
  }

 private:
  struct Folder {
    fs::path path;
    FileId metadata_file = 0;
    DcpMetadata metadata = {};
    std::map<std::string, FileId> files = {};  // by their names there
  };

  std::string display(FileId file) const { return draft_.inputs[file].display(); }

  static void refuse_megatron(const fs::path& folder) {
    if (!is_stored(folder / "common.pt") || !is_stored(folder / "metadata.json")) return;
    throw UnsupportedError({.file = folder.string()},
                           "is of Megatron's torch_dist: its tensors are of Megatron's layout, not "
                           "the model's")
        .with_hint("Megatron Bridge's export of a checkpoint makes weights of Hugging Face");
  }

  // Calls `take` with each place and what lies there.
  template <typename Take>
  static void each_place(const Folder& folder, const Take& take) {
    for (const DcpValue& value : folder.metadata.values) {
      if (!value.tensor) {
        take(value.name, value.pickle);
        continue;
      }
      for (const DcpChunk& chunk : value.tensor->chunks) {
        if (numel(chunk.sizes) != 0) take(value.name, chunk.place);
      }
    }
  }

  void open_files() {
    std::vector<std::string> missing;
    for (Folder& folder : folders_) {
      const std::string shown = display(folder.metadata_file);
      std::map<std::string, std::string> first;  // of each file, a value in it
      each_place(folder, [&](const std::string& name, const DcpPlace& place) {
        first.emplace(place.file, name);
      });
      const OpeningFiles opening(draft_.inputs.progress(), first.size());
      for (const auto& [file, value] : first) {
        const fs::path relative = fs::path(file).lexically_normal();
        if (relative.empty() || relative.is_absolute() || *relative.begin() == ".." ||
            file.find('\0') != file.npos) {
          throw CorruptError({.file = shown, .tensor = value},
                             "lies out of the folder, in " + printable(file));
        }
        const fs::path path = folder.path / relative;
        if (!is_stored(path)) {
          missing.push_back(draft_.folder.display(path) + ", with '" + value + "'");
          continue;
        }
        const FileId id = draft_.inputs.add(path, draft_.folder.display_root());
        folder.files.emplace(file, id);
        draft_.data_files.push_back({path, id});
        opening.throw_if_cancelled();
        opening.opened_one();
      }
    }
    if (missing.empty()) return;
    throw InconsistentError({.file = draft_.folder.path.string()},
                            std::to_string(missing.size()) +
                                (missing.size() == 1 ? " data file is" : " data files are") +
                                " missing:" + listed(missing));
  }

  void set_parts() {
    std::map<FileId, std::vector<FilePart>> parts;
    for (const Folder& folder : folders_) {
      each_place(folder, [&](const std::string& name, const DcpPlace& place) {
        const FileId id = folder.files.at(place.file);
        const InputFile& file = draft_.inputs[id];
        if (place.offset > file.size() || place.size > file.size() - place.offset) {
          throw CorruptError({.file = file.display(), .tensor = name, .offset = place.offset},
                             std::to_string(place.size) +
                                 " bytes from there on, but the file has " +
                                 std::to_string(file.size()) + ": it is truncated");
        }
        parts[id].push_back({{id, place.offset, place.size}, name});
      });
    }
    for (auto& [id, some] : parts) {
      std::stable_sort(some.begin(), some.end(), [](const FilePart& a, const FilePart& b) {
        return std::pair(a.extent.offset, a.extent.size) <
               std::pair(b.extent.offset, b.extent.size);
      });
      some.erase(
          std::unique(some.begin(), some.end(),
                      [](const FilePart& a, const FilePart& b) { return a.extent == b.extent; }),
          some.end());
      for (size_t i = 1; i < some.size(); ++i) {
        const FilePart& before = some[i - 1];
        if (before.extent.end() <= some[i].extent.offset) continue;
        throw CorruptError(
            {.file = display(id), .tensor = some[i].name, .offset = some[i].extent.offset},
            "lies within what '" + before.name + "' has, which begins at " +
                std::to_string(before.extent.offset) + " and ends at " +
                std::to_string(before.extent.end()));
      }
      draft_.inputs.set_parts(id, std::move(some));
    }
  }

  CheckpointDraft& draft_;
  std::vector<Folder> folders_;
};

// Tensors put together from their chunks.
class DcpTensors {
 public:
  DcpTensors(const CheckpointDraft& draft, const DcpFiles& files) : draft_(draft), files_(files) {}

  void want(const DcpEntry& entry) {
    for (const DcpChunk& chunk : entry.value->tensor->chunks) {
      if (numel(chunk.sizes) == 0) continue;
      const Extent extent = files_.extent_of(entry, chunk.place);
      if (numbers_.emplace(std::pair(extent.file, extent.offset), items_.size()).second) {
        items_.push_back({extent, &entry.name(), std::nullopt});
      }
    }
  }

  // Opens all chunks that are wanted.
  void open() {
    const OpeningFiles opening(draft_.inputs.progress(), 0);
    tbb::parallel_for(size_t{0}, items_.size(), [&](size_t i) {
      opening.throw_if_cancelled();
      Item& item = items_[i];
      in_context({.file = draft_.inputs[item.extent.file].display(),
                  .tensor = *item.name,
                  .offset = item.extent.offset},
                 [&] {
                   const TorchArchive archive = TorchArchive::open(draft_.inputs, item.extent);
                   item.value = archive.tensor(archive.root());
                 });
    });
  }

  TensorSource whole(const DcpEntry& entry) const {
    const DcpTensor& tensor = *entry.value->tensor;
    std::vector<TensorBox> boxes;
    std::map<Shape, const Shape*> known;  // sizes by offsets: replicated chunks come again
    for (const DcpChunk& chunk : tensor.chunks) {
      if (numel(chunk.sizes) == 0) continue;
      const auto [same, is_new] = known.emplace(chunk.offsets, &chunk.sizes);
      if (!is_new && *same->second == chunk.sizes) continue;
      boxes.push_back({chunk.offsets, value_of(entry, chunk)});
    }
    return in_context({.file = files_.metadata_name(entry), .tensor = entry.name()},
                      [&] { return join_boxes(tensor.dtype, tensor.shape, std::move(boxes)); });
  }

 private:
  struct Item {
    Extent extent;
    const std::string* name;  // of a tensor whose chunk it is
    std::optional<TensorSource> value;
  };

  const TensorSource& value_of(const DcpEntry& entry, const DcpChunk& chunk) const {
    const Extent extent = files_.extent_of(entry, chunk.place);
    const TensorSource& value = *items_[numbers_.at(std::pair(extent.file, extent.offset))].value;
    const DType dtype = entry.value->tensor->dtype;
    if (value.shape() == chunk.sizes && value.dtype() == dtype) return value;
    throw CorruptError({.file = draft_.inputs[extent.file].display(),
                        .tensor = entry.name(),
                        .offset = extent.offset},
                       "holds " + std::string(torch_name(value.dtype())) + " " +
                           to_text(value.shape()) + ", but its chunk at " + to_text(chunk.offsets) +
                           " is " + std::string(torch_name(dtype)) + " " + to_text(chunk.sizes) +
                           " by " + files_.metadata_name(entry));
  }

  const CheckpointDraft& draft_;
  const DcpFiles& files_;
  std::vector<Item> items_;
  std::map<std::pair<FileId, uint64_t>, size_t> numbers_;  // of items, by file and offset
};

// Which values are the model's and which an optimizer's, by their keys.
class DcpKeys {
 public:
  explicit DcpKeys(std::vector<DcpEntry> entries) : entries_(std::move(entries)) {
    find_optimizers();
    for (const DcpEntry& entry : entries_) {
      if (is_optimizers(entry)) {
        add_optimizer_entry(entry);
      } else if (entry.is_tensor()) {
        others_.push_back(entry);
      }
    }
    find_model();
  }

  struct Named {
    std::string name;  // of the parameter
    std::string key;   // what it is: "exp_avg", "lr"
    DcpEntry entry;
  };
  struct Grouped {
    int64_t group;
    std::string key;
    DcpEntry entry;
  };

  const std::vector<std::string>& optimizers() const { return optimizers_; }
  const std::vector<Named>& model() const { return model_; }
  const std::vector<DcpEntry>& left_out() const { return left_out_; }
  const std::vector<Named>& states() const { return states_; }
  const std::vector<Grouped>& grouped() const { return grouped_; }
  const std::vector<Named>& flat_settings() const { return flat_settings_; }
  // `param_groups` as torch 2.3 saves them: a list as one value.
  const DcpEntry* whole_groups() const { return whole_groups_ ? &*whole_groups_ : nullptr; }

 private:
  // What stands before "state" or "param_groups": "optim.", "optimizer_0.", "".
  void find_optimizers() {
    std::set<std::string> fronts;
    const std::string states = std::string(kStateKey);
    for (const DcpEntry& entry : entries_) {
      const std::string& key = entry.name();
      if (const size_t at = find_part(key, kGroupsKey); at != key.npos) {
        fronts.insert(key.substr(0, at));
      } else if (key.ends_with(".exp_avg")) {
        if (const size_t begin = find_part(key, states); begin != key.npos) {
          fronts.insert(key.substr(0, begin));
        }
      }
    }
    optimizers_.assign(fronts.begin(), fronts.end());
  }

  // What `key` has behind its optimizer's front; nullopt if it is no optimizer's.
  std::optional<std::string_view> behind_front(std::string_view key) const {
    for (const std::string& front : optimizers_) {
      if (!key.starts_with(front)) continue;
      const std::string_view rest = key.substr(front.size());
      for (const std::string_view part : {kStateKey, kGroupsKey}) {
        if (rest.starts_with(part) && (rest.size() == part.size() || rest[part.size()] == '.')) {
          return rest;
        }
      }
    }
    return std::nullopt;
  }
  bool is_optimizers(const DcpEntry& entry) const { return behind_front(entry.name()).has_value(); }

  void add_optimizer_entry(const DcpEntry& entry) {
    const std::string_view rest = *behind_front(entry.name());
    const bool is_state = !rest.starts_with(kGroupsKey);
    const std::string_view part = is_state ? kStateKey : kGroupsKey;
    if (rest.size() <= part.size() + 1) {
      if (!is_state) whole_groups_ = entry;
      return;
    }
    const std::string_view inner = rest.substr(part.size() + 1);
    const std::vector<DcpStep>& path = entry.value->path;
    const auto at = std::find_if(path.begin(), path.end(),
                                 [&](const DcpStep& step) { return is_path_step(step, part); });
    const auto index = static_cast<size_t>(at - path.begin());
    if (path.size() > index + 2) {
      const std::string name = path_text(path, index + 1, index + 2);
      std::string key = path_text(path, index + 2, path.size());
      if (is_state) {
        states_.push_back({name, std::move(key), entry});
      } else if (const auto* group = std::get_if<int64_t>(&path[index + 1])) {
        grouped_.push_back({*group, std::move(key), entry});
      }
      return;
    }
    // Flattened, or nothing tells.
    const size_t dot = inner.rfind('.');
    if (dot == inner.npos) return;
    Named named{std::string(inner.substr(0, dot)), std::string(inner.substr(dot + 1)), entry};
    if (is_state) {
      states_.push_back(std::move(named));
    } else if (path.empty() && is_digits(named.name) && named.name.size() < 10) {
      grouped_.push_back({std::stoll(named.name), std::move(named.key), entry});
    } else {
      flat_settings_.push_back(std::move(named));
    }
  }

  // What stands before a tensor's name in the model: the keys of the dicts that it was in.
  static std::string front_of(const DcpEntry& entry) {
    const std::vector<DcpStep>& path = entry.value->path;
    if (path.empty()) return entry.name().starts_with("model.") ? "model." : "";
    std::string front = path_text(path, 0, path.size() - 1);
    return front.empty() ? front : front + ".";
  }

  void find_model() {
    std::map<std::string, std::set<std::string_view>> names;  // by front
    for (const DcpEntry& entry : others_) {
      const std::string front = front_of(entry);
      if (!entry.name().starts_with(front)) continue;
      names[front].insert(std::string_view(entry.name()).substr(front.size()));
    }
    std::string front;
    bool all = false;
    if (names.size() == 1) {
      front = names.begin()->first;
    } else if (const auto* found = chosen_front(names)) {
      front = *found;
    } else {
      all = true;  // dicts of the user's own
    }
    for (const DcpEntry& entry : others_) {
      if (all || (front_of(entry) == front && entry.name().starts_with(front))) {
        model_.push_back({entry.name().substr(all ? 0 : front.size()), "", entry});
      } else {
        left_out_.push_back(entry);
      }
    }
  }

  // Whether parameters have numbers instead of names.
  bool is_numbered() const {
    return !states_.empty() && std::all_of(states_.begin(), states_.end(), [](const Named& state) {
      return is_digits(state.name);
    });
  }

  // The model's among several; nullptr where nothing tells.
  const std::string* chosen_front(
      const std::map<std::string, std::set<std::string_view>>& names) const {
    std::vector<const std::string*> fitting;
    for (const auto& [front, some] : names) {
      const bool has_all = !states_.empty() && !is_numbered() &&
                           std::all_of(states_.begin(), states_.end(), [&](const Named& state) {
                             return some.contains(state.name);
                           });
      if (has_all) fitting.push_back(&front);
    }
    if (fitting.size() == 1) return fitting.front();
    for (const std::string_view called : {"model.", "state_dict.", "module.", ""}) {
      const auto found = names.find(std::string(called));
      if (found != names.end()) return &found->first;
    }
    std::vector<const std::string*> models;
    for (const auto& [front, some] : names) {
      if (front.ends_with(".model.")) models.push_back(&front);
    }
    return models.size() == 1 ? models.front() : nullptr;
  }

  std::vector<DcpEntry> entries_;
  std::vector<std::string> optimizers_;
  std::vector<DcpEntry> others_;  // tensors that are no optimizer's
  std::vector<Named> model_;
  std::vector<DcpEntry> left_out_;
  std::vector<Named> states_;
  std::vector<Grouped> grouped_;
  std::vector<Named> flat_settings_;
  std::optional<DcpEntry> whole_groups_;
};

// A setting of an optimizer: numbers, texts, None, and tuples and lists of such.
constexpr int kSettingDepth = 4;
constexpr size_t kSettingItems = 1024;

std::optional<Value> copy_setting(Document& document, const TorchArchive& archive,
                                  const Value& value, int depth = 0) {
  switch (value.kind()) {
    case Kind::none:
    case Kind::boolean:
    case Kind::integer:
    case Kind::real:
      return value;
    case Kind::string:
      return document.string(value.as_string());
    case Kind::tuple:
    case Kind::list: {
      const auto items = value.as_sequence();
      if (depth == kSettingDepth || items.size() > kSettingItems) return std::nullopt;
      std::vector<Value> copies;
      for (const Value& item : items) {
        const auto copy = copy_setting(document, archive, item, depth + 1);
        if (!copy) return std::nullopt;
        copies.push_back(*copy);
      }
      return value.is(Kind::tuple) ? document.tuple(std::move(copies))
                                   : document.list(std::move(copies));
    }
    default:
      break;
  }
  if (!TorchArchive::is_tensor(value)) return std::nullopt;
  const std::optional<double> number = archive.scalar(value);
  return number ? std::optional(Document::real(*number)) : std::nullopt;
}

std::string setting_text(const Value& value) {
  switch (value.kind()) {
    case Kind::none:
      return "N";
    case Kind::boolean:
      return value.as_bool() ? "T" : "F";
    case Kind::integer:
      return std::to_string(value.as_int());
    case Kind::real: {
      const double real = value.as_real();
      return "r" + std::string(reinterpret_cast<const char*>(&real), sizeof real);
    }
    case Kind::string:
      return "s" + std::to_string(value.as_string().size()) + ":" + std::string(value.as_string());
    default: {
      std::string text = value.is(Kind::tuple) ? "(" : "[";
      for (const Value& item : value.sequence_or_empty()) text += setting_text(item) + ",";
      return text + ")";
    }
  }
}

// The optimizer's groups.
class DcpGroups {
 public:
  DcpGroups(CheckpointDraft& draft, const DcpFiles& files, const DcpKeys& keys)
      : draft_(draft), files_(files), keys_(keys) {}

  // Names of all parameters that the groups have.
  std::vector<std::vector<std::string>> read(bool settings) {
    if (const DcpEntry* whole = keys_.whole_groups()) {
      read_whole(*whole);
    } else if (!keys_.grouped().empty()) {
      read_nested(settings);
    } else {
      read_flat(settings);
    }
    std::vector<std::vector<std::string>> names;
    for (const Made& group : made_) names.push_back(group.params);
    return names;
  }

  // Into the draft. Not if parameters have numbers only.
  void put() {
    for (size_t i = 0; i < made_.size(); ++i) {
      Made& group = made_[i];
      ParamGroup& made = draft_.groups.emplace_back();
      made.params = std::move(group.params);
      if (!group.document) continue;
      draft_.item_archives.push_back(std::make_unique<TorchArchive>(
          TorchArchive::of_values(draft_.inputs, {group.file, i, 0}, std::move(*group.document))));
      const TorchArchive& archive = *draft_.item_archives.back();
      made.settings = {&archive, archive.root()};
    }
    if (left_out_.empty()) return;
    draft_.notes.push_back("settings of the optimizer that are no numbers are left out: " +
                           some_of({left_out_.begin(), left_out_.end()}));
  }

 private:
  struct Made {
    std::vector<std::string> params;
    std::optional<Document> document;
    FileId file = 0;
  };

  static std::vector<std::string> names_in(const Value& params) {
    std::vector<std::string> names;
    for (const Value& name : params.sequence_or_empty()) {
      // Numbers are those of optimizer.state_dict().
      names.push_back(name.is(Kind::string) ? std::string(name.as_string())
                                            : std::to_string(name.as_int()));
    }
    return names;
  }

  void set(Made& group, const std::string& key, const TorchArchive& archive, const Value& value) {
    Document& document = *group.document;
    const auto copy = copy_setting(document, archive, value);
    if (!copy) {
      left_out_.insert(key);
      return;
    }
    document.set_item(document.root(), document.string(key), *copy);
  }

  static Made& begin(Made& group, FileId file) {
    group.document.emplace();
    group.document->set_root(group.document->dict());
    group.file = file;
    return group;
  }

  void read_whole(const DcpEntry& entry) {
    const TorchArchive archive = files_.open_value(entry);
    in_context({.file = draft_.inputs[archive.file()].display(), .tensor = entry.name()}, [&] {
      for (const Value& group : archive.root().as_sequence()) {
        Made& made = begin(made_.emplace_back(), files_.metadata_file(entry));
        for (const auto& [key, value] : group.as_dict().items) {
          const std::string name(key.as_string());
          if (name == kParamsKey) {
            made.params = names_in(value);
          } else {
            set(made, name, archive, value);
          }
        }
      }
    });
  }

  void read_nested(bool settings) {
    std::map<int64_t, Made> groups;
    for (const DcpKeys::Grouped& each : keys_.grouped()) {
      Made& group = groups[each.group];
      const bool is_params = each.key == kParamsKey;
      if (!is_params && !settings) continue;
      if (!group.document) begin(group, files_.metadata_file(each.entry));
      const TorchArchive archive = files_.open_value(each.entry);
      in_context({.file = draft_.inputs[archive.file()].display(), .tensor = each.entry.name()},
                 [&] {
                   if (is_params) {
                     group.params = names_in(archive.root());
                   } else {
                     set(group, each.key, archive, archive.root());
                   }
                 });
    }
    for (auto& [number, group] : groups) {
      if (number != static_cast<int64_t>(made_.size())) {
        throw InconsistentError({.file = draft_.folder.path.string()},
                                "has the optimizer's group " + std::to_string(number) +
                                    ", but no group " + std::to_string(made_.size()));
      }
      made_.push_back(std::move(group));
    }
  }

  // A dict of each parameter's own. Those that are equal were one group, or might have been.
  void read_flat(bool settings) {
    std::vector<std::string> order;
    std::unordered_map<std::string, std::vector<const DcpKeys::Named*>> by_name;
    for (const DcpKeys::Named& each : keys_.flat_settings()) {
      auto& some = by_name[each.name];
      if (some.empty()) order.push_back(each.name);
      some.push_back(&each);
    }
    if (!settings) {
      if (!order.empty()) made_.push_back({.params = std::move(order), .document = {}});
      return;
    }
    std::vector<Made> apart(order.size());
    std::vector<std::string> texts(order.size());
    for (size_t i = 0; i < order.size(); ++i) {
      const auto& some = by_name.at(order[i]);
      Made& made = begin(apart[i], files_.metadata_file(some.front()->entry));
      std::map<std::string, std::string> sorted;
      for (const DcpKeys::Named* each : some) {
        const TorchArchive archive = files_.open_value(each->entry);
        set(made, each->key, archive, archive.root());
      }
      for (const auto& [key, value] : made.document->root().as_dict().items) {
        sorted.emplace(key.as_string(), setting_text(value));
      }
      for (const auto& [key, text] : sorted) texts[i] += key + "=" + text + ";";
    }
    std::map<std::string, size_t> numbers;
    for (size_t i = 0; i < order.size(); ++i) {
      const auto [number, is_new] = numbers.emplace(texts[i], made_.size());
      if (is_new) made_.push_back(std::move(apart[i]));
      made_[number->second].params.push_back(order[i]);
    }
  }

  CheckpointDraft& draft_;
  const DcpFiles& files_;
  const DcpKeys& keys_;
  std::vector<Made> made_;
  std::set<std::string> left_out_;
};

// The order of torch's Adam.
bool is_before_in_adam(const ParamState& a, const ParamState& b) {
  const auto rank = [](const std::string& key) {
    return key == "exp_avg" ? 0 : key == "exp_avg_sq" ? 1 : 2;
  };
  return std::tuple(rank(a.key), std::string_view(a.key)) <
         std::tuple(rank(b.key), std::string_view(b.key));
}

bool is_batch_norms(std::string_view name) {
  const std::string_view last = name.substr(name.rfind('.') + 1);
  return last == "running_mean" || last == "running_var" || last == "num_batches_tracked";
}

class DcpReader {
 public:
  explicit DcpReader(CheckpointDraft& draft)
      : draft_(draft), files_(draft), keys_(files_.entries()), tensors_(draft, files_) {}

  void read() {
    draft_.facts.mesh.dp = files_.ranks();
    check_optimizers();
    DcpGroups groups(draft_, files_, keys_);
    find_trained(groups.read(draft_.optimizer_states));
    const bool numbered = numbered_;
    const bool states = draft_.optimizer_states && !numbered;
    for (const DcpKeys::Named& each : keys_.model()) tensors_.want(each.entry);
    if (states) want_states();
    tensors_.open();
    add_params();
    if (!numbered) open_steps();
    if (states) {
      add_states();
      groups.put();
    }
    note_left_out();
    if (!draft_.optimizer_states) return;
    draft_.facts.states_assigned = !numbered;
    if (numbered) {
      draft_.notes.emplace_back(
          "the optimizer numbers its parameters (optimizer.state_dict() as it is), so its states "
          "are left out; get_optimizer_state_dict of torch.distributed.checkpoint.state_dict "
          "names them");
    }
  }

 private:
  void check_optimizers() {
    if (keys_.model().empty()) {
      throw InconsistentError(
          {.file = draft_.folder.path.string()},
          "has no tensors of a model" +
              std::string(keys_.optimizers().empty() ? "" : ", but an optimizer"));
    }
    if (!draft_.optimizer_states || keys_.optimizers().size() < 2) return;
    throw UnsupportedError({.file = draft_.folder.path.string()},
                           "has several optimizers, under '" + keys_.optimizers()[0] + "' and '" +
                               keys_.optimizers()[1] + "'");
  }

  void find_trained(const std::vector<std::vector<std::string>>& groups) {
    for (const DcpKeys::Named& state : keys_.states()) trained_.insert(state.name);
    for (const auto& group : groups) trained_.insert(group.begin(), group.end());
    std::unordered_set<std::string_view> known;
    for (const DcpKeys::Named& each : keys_.model()) known.insert(each.name);
    std::vector<std::string> unknown;
    for (const std::string& name : trained_) {
      if (!known.contains(name)) unknown.push_back(name);
    }
    if (unknown.empty()) return;
    // optimizer.state_dict() as it is.
    numbered_ = std::all_of(trained_.begin(), trained_.end(), is_digits);
    if (numbered_) return trained_.clear();
    throw InconsistentError({.file = draft_.folder.path.string(), .tensor = unknown.front()},
                            "is one of " + counted(unknown.size(), "parameter") +
                                " that the optimizer has and the model has not:" + listed(unknown));
  }

  // Values that are no tensors are opened one by one, and so are steps.
  static bool is_of_elements(const DcpKeys::Named& state) {
    return state.entry.is_tensor() && state.key != kStepKey;
  }

  void want_states() {
    for (const DcpKeys::Named& state : keys_.states()) {
      if (is_of_elements(state)) {
        tensors_.want(state.entry);
      } else if (state.key != kStepKey) {
        whole_.push_back(&state);
      }
    }
  }

  // The run has made as many steps as the parameter that was stepped most often.
  void open_steps() {
    for (const DcpKeys::Named& state : keys_.states()) {
      if (state.key == kStepKey) steps_.push_back({&state, nullptr});
    }
    std::vector<double> numbers(steps_.size());
    tbb::parallel_for(size_t{0}, steps_.size(), [&](size_t i) {
      Step& step = steps_[i];
      step.archive = std::make_unique<TorchArchive>(files_.open_value(step.state->entry));
      const Where where{.file = draft_.inputs[step.archive->file()].display(),
                        .tensor = step.state->entry.name()};
      in_context(where, [&] {
        const std::optional<double> number = step.archive->scalar(step.archive->root());
        if (!number) throw CorruptError({}, "is not a number");
        numbers[i] = *number;
      });
    });
    constexpr double kMostSteps = 1e15;
    auto& steps = draft_.facts.global_steps;
    for (const double number : numbers) {
      if (!(number >= 0 && number < kMostSteps)) continue;
      steps = std::max(steps.value_or(0), static_cast<int64_t>(number));
    }
  }

  ParamKind kind_of(const DcpKeys::Named& each, DType dtype) const {
    if (trained_.contains(each.name)) return ParamKind::trainable;
    if (!is_floating_point(dtype) || is_batch_norms(each.name)) return ParamKind::buffer;
    return trained_.empty() ? ParamKind::trainable : ParamKind::frozen;
  }

  // What lies at the same places of the files as an earlier one is the same tensor.
  std::string places_text(const DcpEntry& entry) const {
    std::string text = to_text(entry.value->tensor->shape);
    for (const DcpChunk& chunk : entry.value->tensor->chunks) {
      if (numel(chunk.sizes) == 0) continue;
      const Extent extent = files_.extent_of(entry, chunk.place);
      text += ";" + to_text(chunk.offsets) + std::to_string(extent.file) + ":" +
              std::to_string(extent.offset);
    }
    return text;
  }

  void add_params() {
    draft_.facts.frozen_known = !trained_.empty();
    std::unordered_map<std::string, std::string, KeyedHash> owners;
    size_t told_by_type = 0;
    for (const DcpKeys::Named& each : keys_.model()) {
      const DcpTensor& tensor = *each.entry.value->tensor;
      Param param{.name = each.name,
                  .kind = kind_of(each, tensor.dtype),
                  .weight = tensors_.whole(each.entry)};
      if (numel(tensor.shape) != 0) {
        const auto [owner, is_new] = owners.emplace(places_text(each.entry), each.name);
        if (!is_new) param.alias_of = owner->second;
      }
      param.requires_grad = param.kind == ParamKind::trainable;
      if (param.kind == ParamKind::frozen) ++told_by_type;
      if (param.requires_grad && size_of(tensor.dtype) < size_of(DType::float32)) {
        draft_.facts.has_masters = false;
      }
      draft_.params.push_back(std::move(param));
    }
    prefer_trained_owners();
    std::stable_sort(draft_.params.begin(), draft_.params.end(),
                     [](const Param& a, const Param& b) { return rank_of(a) < rank_of(b); });
    if (told_by_type == 0) return;
    draft_.notes.push_back(counted(told_by_type, "tensor") +
                           " that the optimizer does not have count as frozen parameters; nothing "
                           "says which of them are buffers");
  }

  static int rank_of(const Param& param) {
    if (!param.alias_of.empty()) return 3;
    return param.kind == ParamKind::buffer ? 0 : param.kind == ParamKind::frozen ? 1 : 2;
  }

  // Of the names of one tensor the optimizer knows one.
  void prefer_trained_owners() {
    std::unordered_map<std::string, std::string> chosen;
    for (const Param& param : draft_.params) {
      if (!param.alias_of.empty() && trained_.contains(param.name) &&
          !trained_.contains(param.alias_of)) {
        chosen.emplace(param.alias_of, param.name);
      }
    }
    if (chosen.empty()) return;
    for (Param& param : draft_.params) {
      const auto of_owner = chosen.find(param.alias_of.empty() ? param.name : param.alias_of);
      if (of_owner == chosen.end()) continue;
      param.alias_of = of_owner->second == param.name ? "" : of_owner->second;
      param.kind = ParamKind::trainable;
      param.requires_grad = true;
    }
  }

  void add_states() {
    std::unordered_map<std::string_view, Param*> params;
    for (Param& param : draft_.params) params.emplace(param.name, &param);
    for (const DcpKeys::Named& state : keys_.states()) {
      if (!is_of_elements(state)) continue;
      Param& param = *params.at(state.name);
      TensorSource value = tensors_.whole(state.entry);
      if (value.shape() == param.weight.shape()) {
        param.states.push_back({state.key, std::move(value)});
      } else {
        whole_.push_back(&state);
      }
    }
    for (Step& step : steps_) {
      params.at(step.state->name)->step = {step.archive.get(), step.archive->root()};
      draft_.item_archives.push_back(std::move(step.archive));
    }
    for (const DcpKeys::Named* other : whole_) {
      draft_.item_archives.push_back(
          std::make_unique<TorchArchive>(files_.open_value(other->entry)));
      const TorchArchive& archive = *draft_.item_archives.back();
      params.at(other->name)
          ->others.push_back({.key = other->key, .value = {&archive, archive.root()}});
    }
    for (Param& param : draft_.params) {
      std::stable_sort(param.states.begin(), param.states.end(), is_before_in_adam);
    }
  }

  void note_left_out() {
    if (keys_.left_out().empty()) return;
    std::vector<std::string> names;
    for (const DcpEntry& entry : keys_.left_out()) names.push_back(entry.name());
    draft_.notes.push_back(counted(names.size(), "tensor") + " beside the model " +
                           (names.size() == 1 ? "is" : "are") + " left out: " + some_of(names));
  }

  CheckpointDraft& draft_;
  DcpFiles files_;
  DcpKeys keys_;
  DcpTensors tensors_;
  std::set<std::string> trained_;
  bool numbered_ = false;  // parameters have numbers instead of names
  struct Step {
    const DcpKeys::Named* state;
    std::unique_ptr<TorchArchive> archive;
  };
  std::vector<Step> steps_;
  std::vector<const DcpKeys::Named*> whole_;  // what else is not one value an element
};

bool probe_dcp(CheckpointDraft& draft) {
  return !draft.folder.dcp_metadata.empty();
}

void read_dcp(CheckpointDraft& draft) {
  if (draft.mp_rank) {
    throw UnsupportedError(
        {.file = draft.folder.path.string()},
        "is of torch.distributed.checkpoint: it has no ranks to read one by one");
  }
  if (!draft.tp_rules.empty()) {
    throw UsageError(
        "--tp-rule is for slices that no file tells how to put together; chunks of "
        "torch.distributed.checkpoint say where they belong");
  }
  DcpReader(draft).read();
}

}  // namespace

const Layout kDcp{"dcp", probe_dcp, read_dcp};

}  // namespace dsckpt
