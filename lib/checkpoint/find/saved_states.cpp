#include "checkpoint/find/saved_states.h"

#include <algorithm>
#include <array>
#include <map>
#include <set>

#include "base/bytes.h"
#include "base/text.h"
#include "checkpoint/find/rank_name.h"
#include "deepspeed/shard_name.h"
#include "dsckpt/error.h"
#include "format/dcp_metadata.h"
#include "io/content_name.h"
#include "io/far_files.h"
#include "io/input_file.h"

namespace dsckpt {
namespace fs = std::filesystem;
namespace {

constexpr std::array<const char*, 2> kLatest{"latest", "latest_universal"};
constexpr uint64_t kMaxTagBytes = 4096;
constexpr int kLevels = 3;              // Lightning: version_0/checkpoints/epoch=0-step=10.ckpt
constexpr size_t kMostFolders = 20000;  // of a folder that is not an output of a training
constexpr size_t kMostFiles = 4096;     // likewise, of those that may be whole trainings
constexpr std::string_view kModelFront = "model";

std::string name_of(const fs::path& path) {
  return path.has_filename() ? path.filename().string() : path.parent_path().filename().string();
}

// The number behind `front` in a folder's name; "" if it is none.
std::string number_behind(std::string_view front, const fs::path& folder) {
  const std::string name = name_of(folder);
  if (!name.starts_with(front)) return "";
  std::string number = name.substr(front.size());
  return is_digits(number) ? number : "";
}

SavedState accelerates(Folders& folders, const fs::path& folder, const std::string& number) {
  SavedState state{.kind = StateKind::dcp, .folder = folder, .named = folder};
  state.tag = name_of(folder);
  state.dcp_metadata = {folder / (std::string(kAccelerateModel) + number) / kDcpMetadataName};
  state.file = state.dcp_metadata.front();
  const fs::path optimizer = folder / (std::string(kAccelerateOptimizer) + number);
  if (has_dcp_metadata(folders, optimizer)) {
    state.dcp_metadata.push_back(optimizer / kDcpMetadataName);
  }
  return state;
}

void add_shards(Folders& folders, const fs::path& folder, std::vector<SavedState>& states) {
  const ListedFolder& listed = folders[folder];
  fs::path shard;
  bool has_optimizer = false;
  for (const auto* paths : {&listed.files, &listed.folders}) {  // a folder of that name is damage
    for (const fs::path& path : *paths) {
      const auto name = parse_shard_name(path.filename().string());
      if (name && shard.empty()) shard = path;
      has_optimizer = has_optimizer || (name && name->kind == ShardName::Kind::optim_states);
    }
  }
  if (shard.empty()) return;
  const bool has_zero =
      std::binary_search(listed.folders.begin(), listed.folders.end(), folder / "zero");
  SavedState state{.folder = folder, .named = folder, .tag = name_of(folder), .file = shard};
  state.kind = has_zero && !has_optimizer ? StateKind::universal : StateKind::zero;
  states.push_back(std::move(state));
}

void add_dcp(Folders& folders, const fs::path& folder, std::vector<SavedState>& states) {
  if (has_dcp_metadata(folders, folder)) {
    const std::string own = number_behind(kAccelerateModel, folder);
    const std::string number = own.empty() ? number_behind(kAccelerateOptimizer, folder) : own;
    const fs::path named = folder.has_filename() ? folder : folder.parent_path();
    const fs::path above = named.has_parent_path() ? named.parent_path() : fs::path(".");
    if (!number.empty() &&
        has_dcp_metadata(folders, above / (std::string(kAccelerateModel) + number))) {
      states.push_back(accelerates(folders, above, number));
      return;
    }
    SavedState state{.kind = StateKind::dcp, .folder = folder, .named = folder};
    state.tag = name_of(folder);
    state.dcp_metadata = {folder / kDcpMetadataName};
    state.file = state.dcp_metadata.front();
    states.push_back(std::move(state));
    return;
  }
  for (const fs::path& child : folders[folder].folders) {
    const std::string number = number_behind(kAccelerateModel, child);
    if (number.empty() || !has_dcp_metadata(folders, child)) continue;
    states.push_back(accelerates(folders, folder, number));
  }
}

// Where each rank has written files, one set is the model's: that of "model", or the only one.
void add_rank_files(Folders& folders, const fs::path& folder, std::vector<SavedState>& states) {
  std::map<std::pair<std::string, std::string>, fs::path> sets;  // with the file of the first rank
  std::map<std::pair<std::string, std::string>, uint32_t> ranks;
  for (const fs::path& file : folders[folder].files) {
    const auto name = parse_rank_name(file.filename().string());
    if (!name) continue;
    const std::pair set(name->front, name->back);
    const auto [rank, is_new] = ranks.emplace(set, name->rank);
    if (!is_new && rank->second < name->rank) continue;
    rank->second = name->rank;
    sets[set] = file;
  }
  const auto is_models = [](const auto& set) {
    return set.first.first.find(kModelFront) != std::string::npos;
  };
  if (std::any_of(sets.begin(), sets.end(), is_models)) {
    std::erase_if(sets, [&](const auto& set) { return !is_models(set); });
  }
  const size_t before = states.size();
  for (const auto& [set, first] : sets) {
    const auto& [front, back] = set;
    // Names of programs of their own are proved by what is in a file.
    if (front.find("world_size_") == front.npos && !has_rank_tensors(first)) continue;
    SavedState state{.kind = StateKind::rank_files, .folder = folder, .named = folder};
    state.tag = name_of(folder);
    state.rank_name = set;
    state.model = first.filename().string();
    state.file = first;
    states.push_back(std::move(state));
  }
  if (states.size() == before + 1) states.back().model.clear();
}

// The rest of the name of an optimizer that the Trainer (trainer.py OPTIMIZER_NAME) or Accelerate
// (constants.py OPTIMIZER_NAME) saves without ranks. Accelerate's further ones have numbers.
std::optional<std::string> optimizer_number(std::string_view name) {
  constexpr std::string_view kFront = "optimizer";
  constexpr std::string_view kBack = ".bin";
  if (name == "optimizer.pt") return "";
  if (!name.starts_with(kFront) || !name.ends_with(kBack)) return std::nullopt;
  const std::string_view number =
      name.substr(kFront.size(), name.size() - kFront.size() - kBack.size());
  if (number.empty() || (number.front() == '_' && is_digits(number.substr(1)))) {
    return std::string(number);
  }
  return std::nullopt;
}

// The weights of a model of that number: a file, an index, or the first of several files that say
// how many they are.
std::optional<fs::path> weights_beside(const ListedFolder& folder, const std::string& number) {
  for (const char* stem : {"model", "pytorch_model", "pytorch_model_fsdp"}) {
    for (const char* suffix : {".safetensors", ".bin"}) {
      const std::string front = stem + number;
      if (folder.has_file(front + suffix)) return folder.path / (front + suffix);
      if (folder.has_file(front + suffix + ".index.json")) {
        return folder.path / (front + suffix + ".index.json");
      }
      const auto numbered =
          std::find_if(folder.files.begin(), folder.files.end(), [&](const fs::path& file) {
            const std::string name = file.filename().string();
            return name.starts_with(front + "-") && name.ends_with(suffix) &&
                   name.find("-of-") != name.npos;
          });
      if (numbered != folder.files.end()) return *numbered;
    }
  }
  return std::nullopt;
}

void add_trainings(Folders& folders, const fs::path& folder, std::vector<SavedState>& states) {
  const ListedFolder& listed = folders[folder];
  const size_t before = states.size();
  for (const fs::path& file : listed.files) {
    const auto number = optimizer_number(file.filename().string());
    const auto weights = number ? weights_beside(listed, *number) : std::nullopt;
    if (!weights) continue;
    SavedState state{.kind = StateKind::training, .folder = folder, .named = folder};
    state.tag = name_of(folder);
    state.training = {*weights, file};
    state.file = file;
    states.push_back(std::move(state));
  }
  if (states.size() < before + 2) return;
  for (size_t i = before; i < states.size(); ++i) {
    const std::string name = states[i].training.weights.filename().string();
    states[i].model = name.substr(0, name.find_first_of(".-"));
  }
}

// A search that stops would take for the only checkpoint what it has seen by then.
[[noreturn]] void refuse_many(const fs::path& folder, size_t most, const char* what) {
  throw InconsistentError({.file = folder.string()}, "the search stopped here, after " +
                                                         std::to_string(most) + " " + what +
                                                         ": another checkpoint may be behind them")
      .with_hint("give the folder of the checkpoint");
}

// True for the name of a file that may be a whole training.
bool may_be_training(const fs::path& file) {
  const std::string name = file.filename().string();
  constexpr std::array<std::string_view, 5> kEndings{".ckpt", ".pt", ".pth", ".bin", ".pth.tar"};
  // Trainers save these beside a model and its optimizer (transformers/trainer.py,
  // accelerate/utils/constants.py).
  constexpr std::array<std::string_view, 6> kOthers{"training_args", "scheduler",     "scaler",
                                                    "rng_state",     "random_states", "sampler"};
  const auto ends = [&](std::string_view ending) { return name.ends_with(ending); };
  const auto starts = [&](std::string_view front) { return name.starts_with(front); };
  return std::any_of(kEndings.begin(), kEndings.end(), ends) &&
         std::none_of(kOthers.begin(), kOthers.end(), starts) && !parse_shard_name(name) &&
         !parse_rank_name(name) && !optimizer_number(name) && !is_weights_name(file);
}

// Those below a folder that is none itself.
class Search {
 public:
  explicit Search(Folders& folders) : folders_(folders) {}

  std::vector<SavedState> take() {
    for (size_t i = 0; found_.empty() && i < without_.size(); ++i) {
      std::vector<SavedState> own = weights_in(folders_, without_[i]);
      weights_.insert(weights_.end(), own.begin(), own.end());
    }
    return std::move(found_.empty() ? weights_ : found_);
  }

  // True if the folder itself is a state, or has tags.
  bool add(const fs::path& folder) {
    if (const auto latest = latest_in(folders_, folder)) {
      add_tags(folder, *latest);
      return true;
    }
    std::vector<SavedState> own = states_in(folders_, folder);
    found_.insert(found_.end(), own.begin(), own.end());
    const bool are_files = std::all_of(own.begin(), own.end(), [](const SavedState& state) {
      return state.kind == StateKind::training;
    });
    if (are_files) {
      for (SavedState& state : whole_trainings_in(folders_, folder)) {
        found_.push_back(std::move(state));
      }
    }
    if (own.empty()) without_.push_back(folder);
    return !own.empty();
  }

  void add_below(const fs::path& folder, int levels) {
    for (const fs::path& child : folders_[folder].folders) {
      const std::string name = child.filename().string();
      if (name.starts_with(".") || name == "zero") continue;
      if (++seen_ > kMostFolders) refuse_many(folder, kMostFolders, "folders");
      if (add(child) || add_unfinished(child)) continue;
      if (levels > 1) add_below(child, levels - 1);
    }
  }

 private:
  // Files of DCP's tensors without the `.metadata` that rank 0 writes last. (Those of a folder that
  // a user gives may be another node's.)
  bool add_unfinished(const fs::path& folder) {
    if (dcp_data_files(folders_[folder]).empty()) return false;
    SavedState state{.kind = StateKind::dcp, .folder = folder, .named = folder};
    state.tag = name_of(folder);
    state.damage = "has no `.metadata`: the save did not finish";
    found_.push_back(std::move(state));
    return true;
  }

  // The tag of `latest`, and the other tags beside it.
  void add_tags(const fs::path& folder, const fs::path& latest) {
    std::string tag;
    std::vector<SavedState> named;
    SavedState broken{.folder = folder, .named = folder, .is_latest = true};
    try {
      tag = tag_named_by(latest);
      named = states_in(folders_, folder / tag);
      if (named.empty()) broken.damage = "`latest` names '" + tag + "', which is not there";
    } catch (const Error& error) {
      if (error.kind() == ErrorKind::io) throw;
      broken.damage = "`latest` " + error.message();
    }
    broken.tag = tag;
    if (named.empty()) found_.push_back(std::move(broken));
    for (SavedState& state : named) {
      state.named = folder;
      state.tag = tag;
      state.is_latest = true;
      found_.push_back(std::move(state));
    }
    for (const fs::path& child : folders_[folder].folders) {
      const bool is_named = child.lexically_normal() == (folder / tag).lexically_normal();
      if (is_named || child.filename().string().front() == '.') continue;
      for (SavedState& state : states_in(folders_, child)) found_.push_back(std::move(state));
    }
  }

  Folders& folders_;
  std::vector<SavedState> found_;
  std::vector<SavedState> weights_;
  std::vector<fs::path> without_;  // folders that are no states
  size_t seen_ = 0;
};

}  // namespace

std::string_view to_string(StateKind kind) {
  switch (kind) {
    case StateKind::zero:
      return "ZeRO";
    case StateKind::universal:
      return "universal";
    case StateKind::dcp:
      return "DCP";
    case StateKind::rank_files:
      return "rank files";
    case StateKind::training:
      return "weights and optimizer";
    case StateKind::weights:
      return "weights";
  }
  return "";
}

bool SavedState::is_file() const {
  return !training.optimizer.empty() && training.weights == training.optimizer;
}

fs::path SavedState::below(const fs::path& above) const {
  // A tag in `above` itself is told by its own name; Accelerate's models have a folder each.
  fs::path own = is_latest && named != above ? named : folder;
  if (kind == StateKind::dcp && !dcp_metadata.empty()) own = dcp_metadata.front().parent_path();
  if (is_file()) return named.lexically_relative(above);
  if (!model.empty()) own /= model;
  fs::path relative = own.lexically_relative(above);
  return relative.empty() ? own : relative;
}

std::vector<SavedState> states_in(Folders& folders, const fs::path& folder) {
  std::vector<SavedState> states;
  add_shards(folders, folder, states);
  add_dcp(folders, folder, states);
  add_rank_files(folders, folder, states);
  add_trainings(folders, folder, states);
  return states;
}

std::vector<SavedState> whole_trainings_in(Folders& folders, const fs::path& folder) {
  std::vector<SavedState> states;
  std::vector<SavedState> unreadable;
  std::set<fs::path> endings{".ckpt"};
  for (const fs::path& file : folders[folder].files) {
    if (!may_be_training(file)) continue;
    if (folders.contents.size() > kMostFiles) {
      refuse_many(folder, kMostFiles, "files that may be checkpoints");
    }
    SavedState state{.kind = StateKind::training, .folder = folder, .named = file};
    state.tag = file.stem().string();
    state.training = {file, file};
    state.file = file;
    const FileContent content = file_content(folders, file);
    if (content == FileContent::training) {
      endings.insert(file.extension());
      states.push_back(std::move(state));
    } else if (content == FileContent::unreadable) {
      unreadable.push_back(std::move(state));
    }
  }
  for (SavedState& state : unreadable) {
    if (endings.contains(state.named.extension())) states.push_back(std::move(state));
  }
  return states;
}

std::vector<SavedState> states_of(const fs::path& folder, const std::vector<WeightsSet>& sets) {
  std::vector<SavedState> states;
  for (const WeightsSet& set : sets) {
    SavedState state{.kind = StateKind::weights, .folder = folder, .named = folder};
    state.tag = name_of(folder);
    if (sets.size() > 1) state.model = set.name;
    state.training.weights = set.first();
    state.file = set.first();
    states.push_back(std::move(state));
  }
  return states;
}

std::vector<SavedState> weights_in(Folders& folders, const fs::path& folder) {
  std::vector<WeightsSet> sets = weights_sets(folders, folder);
  join_unknown(sets);
  take_first_form(sets);
  return states_of(folder, sets);
}

std::vector<SavedState> find_states(Folders& folders, const fs::path& path) {
  Search search(folders);
  try {
    if (!search.add(path)) search.add_below(path, kLevels);
  } catch (const IoError& error) {  // the newest may be there
    error.hinted("if another one is meant, give its folder").raise();
  }
  return search.take();
}

std::optional<fs::path> latest_in(Folders& folders, const fs::path& folder) {
  for (const char* name : kLatest) {
    if (folders[folder].has_file(name)) return folder / name;
  }
  return std::nullopt;
}

std::optional<fs::path> latest_in(const fs::path& folder) {
  Folders folders;
  return latest_in(folders, folder);
}

bool is_latest(const fs::path& file) {
  std::error_code failed;
  const fs::path name = content_path(file).filename();
  return std::find(kLatest.begin(), kLatest.end(), name) != kLatest.end() &&
         !fs::is_directory(file, failed);
}

std::string tag_named_by(const fs::path& path) {
  const InputFile file(path);
  if (file.size() > kMaxTagBytes) {
    throw CorruptError({.file = shown_path(path)}, "is too long to be the name of a tag");
  }
  const std::vector<std::byte> bytes = file.read(0, file.size());
  std::string_view text = as_text(bytes);
  const auto is_space = [](char c) { return c == ' ' || (c >= '\t' && c <= '\r'); };
  if (text.starts_with("\xef\xbb\xbf")) text.remove_prefix(3);  // of an editor
  while (!text.empty() && (is_space(text.back()) || text.back() == '/')) text.remove_suffix(1);
  while (!text.empty() && is_space(text.front())) text.remove_prefix(1);
  const fs::path tag(text);
  const bool leaves = std::any_of(tag.begin(), tag.end(), [](const auto& p) { return p == ".."; });
  if (text.empty() || text.find('\0') != text.npos || tag.is_absolute() || leaves) {
    throw CorruptError({.file = shown_path(path)}, "does not hold the name of a tag");
  }
  return std::string(text);
}

bool has_dcp_metadata(Folders& folders, const fs::path& folder) {
  if (!folders[folder].has_file(kDcpMetadataName)) return false;
  try {
    constexpr std::byte kProto{0x80};  // protocol 2 and above begin with it
    const InputFile file(folder / kDcpMetadataName);
    return file.size() > 0 && file.read(0, 1).front() == kProto;
  } catch (const Error& error) {
    if (error.kind() == ErrorKind::io) throw;
    return false;
  }
}

std::vector<fs::path> dcp_data_files(const ListedFolder& folder) {
  std::vector<fs::path> files;
  for (const fs::path& file : folder.files) {
    if (file.native().ends_with(kDcpDataSuffix)) files.push_back(file);
  }
  return files;
}

bool is_dcp_name(std::string_view file_name) {
  return file_name == kDcpMetadataName || file_name.ends_with(kDcpDataSuffix);
}

}  // namespace dsckpt
