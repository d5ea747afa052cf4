#include "checkpoint/find/tag_folder.h"

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <system_error>
#include <tuple>

#include "base/hub_model.h"
#include "base/text.h"
#include "checkpoint/find/choose.h"
#include "checkpoint/find/folders.h"
#include "checkpoint/find/rank_name.h"
#include "checkpoint/find/same_files.h"
#include "dsckpt/error.h"
#include "format/dcp_metadata.h"
#include "io/content_name.h"
#include "io/far_files.h"

namespace dsckpt {
namespace fs = std::filesystem;
namespace {

void sort_shards(std::vector<ShardFile>& shards) {
  const auto order = [](const ShardFile& shard) {
    return std::tuple(shard.name.kind, shard.name.mp_rank, shard.name.dp_rank,
                      shard.path.filename());
  };
  std::sort(shards.begin(), shards.end(),
            [&](const ShardFile& a, const ShardFile& b) { return order(a) < order(b); });
}

std::vector<ShardFile> list_shards(Folders& folders, const fs::path& folder) {
  std::vector<ShardFile> shards;
  const ListedFolder& listed = folders[folder];
  for (const auto* paths :
       {&listed.files, &listed.folders}) {  // a folder is not a file, and says so
    for (const fs::path& path : *paths) {
      if (const auto name = parse_shard_name(path.filename().string())) {
        shards.push_back({*name, path});
      }
    }
  }
  sort_shards(shards);
  const auto twice =
      std::adjacent_find(shards.begin(), shards.end(),
                         [](const ShardFile& a, const ShardFile& b) { return a.path == b.path; });
  if (twice != shards.end()) refuse_two_forms(twice->path);
  return shards;
}

// "a, b, c", of the folders in one; "" if there are none.
std::string names_of_folders(Folders& folders, const fs::path& folder) {
  const std::vector<fs::path>& there = folders[folder].folders;
  std::string text;
  for (size_t i = 0; i < there.size() && i < 8; ++i) {
    text += (i == 0 ? "" : ", ") + there[i].filename().string();
  }
  return text + (there.size() > 8 ? ", ..." : "");
}

// " (folders there: a, b)", for a folder that is not what was hoped.
std::string whats_there(Folders& folders, const fs::path& folder) {
  const std::string names = names_of_folders(folders, folder);
  return names.empty() ? " (it has no folders)" : " (folders there: " + names + ")";
}

bool is_folder(const fs::path& path) {
  std::error_code failed;
  return fs::is_directory(path, failed);
}

// The tag's folder in another root.
fs::path find_in_root(Folders& folders, const fs::path& root, const std::string& tag,
                      bool tag_was_given) {
  if (!is_folder(root)) throw no_such_folder(root);
  const auto latest = latest_in(folders, root);
  if (!tag_was_given && latest) {
    if (const std::string named = tag_named_by(*latest); named != tag) {
      throw InconsistentError(
          {.file = latest->string()},
          "names the tag '" + named + "', in the first root it is '" + tag + "'")
          .with_hint("--tag says which one to read");
    }
  }
  if (is_folder(root / tag)) return with_name(root / tag);
  if (!states_in(folders, root).empty()) return with_name(root);
  throw InconsistentError({.file = shown_path(root)},
                          "has no folder of the tag '" + tag + "'" + whats_there(folders, root));
}

// True for another node's folder in which no rank of that tag has left a file. (Nobody has asked
// for it by name.)
bool is_of_nobody(Folders& folders, const fs::path& root, const std::string& tag) {
  if (!is_far(root)) return false;
  return states_in(folders, is_folder(root / tag) ? root / tag : root).empty();
}

void check_given_once(const TagFolder& folder, const fs::path& other) {
  std::error_code failed;
  const auto is_other = [&](const fs::path& known) { return fs::equivalent(known, other, failed); };
  if (is_other(folder.path) ||
      std::any_of(folder.other_roots.begin(), folder.other_roots.end(), is_other)) {
    throw UsageError(other.string() + ": is given twice");
  }
}

void add_root(Folders& folders, TagFolder& folder, const fs::path& other) {
  check_given_once(folder, other);
  folder.other_roots.push_back(other);
  const std::vector<ShardFile> shards = list_shards(folders, other);
  if (shards.empty()) {
    throw InconsistentError({.file = shown_path(other)},
                            "holds no DeepSpeed shards" + whats_there(folders, other));
  }
  std::map<std::string, fs::path> known;
  for (const ShardFile& shard : folder.shards) known.emplace(shard.path.filename(), shard.path);
  for (const ShardFile& shard : shards) {
    const auto found = known.find(shard.path.filename());
    if (found == known.end()) {
      folder.shards.push_back(shard);
    } else if (!are_copies(found->second, shard.path)) {
      throw InconsistentError({.file = shown_path(shard.path)},
                              "is not the same as " + shown_path(found->second) +
                                  ": two files of one rank, perhaps of two saves");
    }
  }
}

// In DCP: the files of some ranks. `.metadata` is written once.
void add_dcp_root(Folders& folders, TagFolder& folder, const fs::path& other) {
  check_given_once(folder, other);
  for (const fs::path& metadata : folder.dcp_metadata) {
    const fs::path same = other / metadata.lexically_relative(folder.path);
    if (!folders[same.parent_path()].has_file(kDcpMetadataName)) continue;
    if (are_copies(metadata, same)) continue;
    throw InconsistentError({.file = shown_path(same)},
                            "is not the same as " + shown_path(metadata) + ", of another save");
  }
  folder.other_roots.push_back(other);
}

// Where the files of a root's ranks are: in it, or in the tag's folder there.
fs::path dcp_folder_in(Folders& folders, const fs::path& root, const std::string& tag) {
  if (!is_folder(root)) throw no_such_folder(root);
  const auto has_some = [&](const fs::path& folder) {
    if (!dcp_data_files(folders[folder]).empty() || has_dcp_metadata(folders, folder)) return true;
    const auto& there = folders[folder].folders;
    return std::any_of(there.begin(), there.end(), [&](const fs::path& child) {
      return child.filename().string().starts_with(kAccelerateModel);
    });
  };
  for (const fs::path& folder : {root / tag, root}) {
    if (is_folder(folder) && has_some(folder)) return with_name(folder);
  }
  throw InconsistentError(
      {.file = shown_path(root)},
      "holds no files of torch.distributed.checkpoint" + whats_there(folders, root));
}

}  // namespace

fs::path TagFolder::display_root() const {
  return other_roots.empty() ? path.parent_path() : fs::path();
}

std::string TagFolder::display(const fs::path& file) const {
  return other_roots.empty() ? file.lexically_relative(display_root()).string() : shown_path(file);
}

fs::path TagFolder::in_roots(const fs::path& file) const {
  if (is_stored(file)) return file;
  for (const fs::path& root : other_roots) {
    for (const fs::path& other : {root / file.lexically_relative(path), root / file.filename()}) {
      if (is_stored(other)) return other.lexically_normal();
    }
  }
  return file;
}

std::vector<ShardFile> TagFolder::of_kind(ShardName::Kind kind) const {
  std::vector<ShardFile> out;
  for (const ShardFile& shard : shards) {
    if (shard.name.kind == kind) out.push_back(shard);
  }
  return out;
}

bool TagFolder::has_split_files() const {
  using Kind = ShardName::Kind;
  return has(Kind::layer) || has(Kind::expert) || has(Kind::expert_optim);
}

namespace {

// True if the file `latest` names the tag.
bool is_tag_of(const fs::path& latest, const std::string& tag) {
  try {
    return tag_named_by(latest) == tag;
  } catch (const Error&) {
    return false;
  }
}

}  // namespace

std::string cure_of(const TagFolder& folder, const std::optional<ShardName>& lost, bool missing) {
  std::string path = shell_word((folder.named.empty() ? folder.path : folder.named).string());
  const auto latest = latest_in(folder.named);
  if (folder.path == folder.named / folder.tag && !(latest && is_tag_of(*latest, folder.tag))) {
    path += " --tag " + shell_word(folder.tag);
  }
  std::string text = "`ckpt-inspect verify " + path + "` lists everything that is wrong";
  const bool has_others = lost &&
                          (lost->kind == ShardName::Kind::optim_states ||
                           lost->kind == ShardName::Kind::zero_model_states) &&
                          folder.has(ShardName::Kind::optim_states);
  if (has_others) {
    text += "; `zero-to-fp32 " + path + " OUT --allow-missing` writes the tensors that are whole";
  }
  if (folder.path == folder.named / folder.tag) {
    std::string paths;
    constexpr size_t kShown = 4;
    const std::vector<fs::path> others = other_tags(folder.named, folder.tag);
    for (size_t i = 0; i < std::min(others.size(), kShown); ++i) {
      paths += (i == 0 ? "" : ", ") + shell_word(others[i].string());
    }
    if (!others.empty()) {
      text += "; other checkpoints there: " + paths + (others.size() > kShown ? ", ..." : "");
    }
  }
  if (missing) text += "; --root DIR reads the files that another node has kept, too";
  return text;
}

UsageError no_roots_of_weights(const fs::path& path) {
  return UsageError(path.string() + ": is not a checkpoint, so it has no other roots")
      .with_hint("leave out --root: files of weights are in one folder");
}

void refuse_other_roots(const TagFolder& universal) {
  if (universal.other_roots.empty()) return;
  throw UnsupportedError({.file = shown_path(universal.path)},
                         "is a universal checkpoint, which is one folder: it has no other roots");
}

namespace {

// The weights of a model in the folder, for who finds no shards there.
std::string weights_hint(const ListedFolder& folder) {
  for (const fs::path& file : folder.files) {
    const std::string name = file.filename().string();
    for (const std::string_view front : {"model", "pytorch_model", "adapter_model"}) {
      if (name.starts_with(front) &&
          (name.ends_with(".safetensors") || name.ends_with(".bin") || name.ends_with(".json"))) {
        return "; " + shell_word(file.string()) + " beside it has weights, which can be given";
      }
    }
  }
  return "";
}

// Archives in which folders are sent about.
bool is_archive(std::string_view name) {
  constexpr std::string_view kEnds[] = {".tar", ".tgz", ".tar.gz", ".tar.zst", ".tar.xz", ".zip"};
  return std::any_of(std::begin(kEnds), std::end(kEnds),
                     [&](std::string_view end) { return name.ends_with(end); });
}

// The digits behind the last letter of a name: "12" of "global_step12", and of "12".
std::string number_of(std::string_view name) {
  const size_t last = name.find_last_not_of("0123456789");
  return std::string(last == name.npos ? name : name.substr(last + 1));
}

// A tag that is not there is named by a path, since not every checkpoint that is opened has an
// option for its tag.
std::string tags_hint(const fs::path& path, const std::string& tag) {
  const std::vector<fs::path> tags = other_tags(path, tag);
  Folders folders;
  if (tags.empty()) {
    return "no folder there holds DeepSpeed's shards" + weights_hint(folders[path]);
  }
  std::vector<fs::path> same;
  std::copy_if(tags.begin(), tags.end(), std::back_inserter(same), [&](const fs::path& each) {
    return !number_of(tag).empty() && number_of(each.filename().string()) == number_of(tag);
  });
  if (same.size() == 1) return "give " + shell_word(same.front().string()) + " instead";
  return "give " + shell_word(tags.front().string()) + " instead: the newest that is there";
}

// "; the tags there: a, b"
std::string tags_there(const fs::path& path) {
  std::string names;
  for (const fs::path& tag : other_tags(path, "")) {
    names += (names.empty() ? "" : ", ") + shell_word(tag.lexically_relative(path).string());
  }
  return names;
}

class Finder {
 public:
  Finder(const FindOptions& options)
      : options_(options),
        listed_(options.folders ? options.folders : std::make_shared<Folders>()),
        tag_(options.tag) {}

  TagFolder find(const fs::path& given) {
    if (is_training_file(folders_, given) && !is_beside_weights(given)) return of_training(given);
    take_path(given);
    std::vector<SavedState> states = states_asked_for();
    if (states.empty() && !options_.roots.empty()) states = states_by_roots();
    if (states.empty()) refuse_nothing();
    states = without_older_tags(top_, std::move(states));
    StatesOfModel of_one = of_model(folders_, top_, std::move(states), options_.model);
    states = std::move(of_one.states);
    model_ = std::move(of_one.in_files);
    if (!is_told_by_names(top_, states)) {
      for (SavedState& state : states) look_into(folders_, state);
    }
    const std::string named = model_.empty() ? options_.model : std::string();
    ChosenState choice = choose(top_, std::move(states), named);
    if (!choice.state.damage.empty()) refuse_latest(choice.state);
    return folder_of(std::move(choice));
  }

 private:
  bool is_beside_weights(const fs::path& file) {
    const fs::path folder = file.has_parent_path() ? file.parent_path() : fs::path(".");
    const std::vector<SavedState> states = states_in(folders_, with_name(folder));
    return std::any_of(states.begin(), states.end(), [&](const SavedState& state) {
      return state.training.optimizer.filename() == content_path(file).filename();
    });
  }

  TagFolder of_training(const fs::path& file) const {
    if (!tag_.empty() || !options_.roots.empty()) {
      throw UsageError(file.string() + ": is one file, which has neither tags nor other roots");
    }
    TagFolder folder;
    folder.path = file.parent_path().empty() ? fs::path(".") : file.parent_path();
    folder.tag = content_path(file).stem().string();
    folder.training = {file, file};
    folder.model = options_.model;
    folder.named = file;
    folder.folders = listed_;
    return folder;
  }

  // A shard, `latest` or a file of DCP means the folder it is in.
  void take_path(const fs::path& given) {
    std::error_code failed;
    const fs::file_status status = fs::status(given, failed);
    if (status.type() == fs::file_type::not_found) throw no_such_folder(given);
    path_ = with_name(given);
    top_ = path_;
    if (failed) throw IoError({.file = shown_path(path_)}, "cannot open", failed.value());
    if (fs::is_directory(status)) return;
    const fs::path file = path_;
    const std::string name = content_path(file).filename().string();
    path_ = top_ = with_name(file.parent_path().empty() ? "." : file.parent_path());
    if (parse_shard_name(name)) {
      of_file_ = {StateKind::zero, StateKind::universal};
    } else if (is_dcp_name(name)) {
      of_file_ = {StateKind::dcp};
    } else if (is_latest(file)) {
      if (tag_.empty()) tag_ = tag_named_by(file);
    } else if ((rank_name_ = parse_rank_name(name))) {
      of_file_ = {StateKind::rank_files};
    } else if (is_training_file(folders_, file)) {
      of_file_ = {StateKind::training};
      optimizer_ = path_ / name;
    } else {
      throw InconsistentError({.file = shown_path(file)}, "is a file; a checkpoint is a folder")
          .with_hint(is_archive(name) ? "unpack it first; archives are not read"
                                      : "give the folder that has the file `latest`");
    }
  }

  std::vector<SavedState> states_asked_for() {
    if (!of_file_.empty() && tag_.empty()) {
      std::vector<SavedState> states = states_in(folders_, path_);
      std::erase_if(states, [&](const SavedState& state) {
        return !of_file_.contains(state.kind) || state.training.optimizer != optimizer_ ||
               !may_be_of(state, rank_name_);
      });
      return states;
    }
    return tag_.empty() ? find_states(folders_, path_) : states_of_tag();
  }

  // True unless the file of that name is of another set of one rank's files.
  static bool may_be_of(const SavedState& state, const std::optional<RankName>& file) {
    if (!file) return true;
    const auto& [front, back] = state.rank_name;
    const RankName own{.front = front, .rank = file->rank, .back = back};
    const std::string name = file->of_rank(file->rank);
    return name == own.of_rank(own.rank) || name == own.sibling("optim") ||
           name == own.sibling("extra_state");
  }

  // Whole trainings in the tag's folder, or else weights. Not below it: a tag is one folder.
  std::vector<SavedState> files_of_tag() {
    std::vector<SavedState> states = whole_trainings_in(folders_, path_ / tag_);
    return states.empty() ? weights_in(folders_, path_ / tag_) : states;
  }

  std::vector<SavedState> states_of_tag() {
    if (path_.filename() == tag_) {
      std::vector<SavedState> own = states_in(folders_, path_);
      if (!own.empty()) return own;
    }
    if (is_folder(path_ / tag_)) {
      std::vector<SavedState> states = states_in(folders_, path_ / tag_);
      for (SavedState& state : states) {
        // Accelerate's are in the folder above their own.
        if (state.folder == path_ / tag_) state.named = path_;
        if (state.folder == path_ / tag_) state.tag = tag_;
      }
      if (!states.empty()) return states;
      if (!latest_in(folders_, path_ / tag_)) return files_of_tag();
      states = find_states(folders_, path_ / tag_);
      if (states.empty()) return states;
      path_ = top_ = path_ / tag_;
      tag_.clear();
      return states;
    }
    std::vector<SavedState> states = find_states(folders_, path_);
    std::erase_if(states, [&](const SavedState& state) {
      if (state.is_file() && state.tag == tag_) return false;
      return state.folder.filename() != tag_ && state.named.filename() != tag_;
    });
    if (states.size() < 2) return states;
    throw InconsistentError(
        {.file = path_.string()},
        "holds several checkpoints of the tag '" + tag_ + "':" + listed(lines_of(path_, states)))
        .with_hint("give one of them: " +
                   shell_word((path_ / states.front().below(path_)).string()));
  }

  // In DCP, where another root has the `.metadata`.
  std::vector<SavedState> states_by_roots() {
    const fs::path own = tag_.empty() ? path_ : path_ / tag_;
    if (dcp_data_files(folders_[own]).empty()) return {};
    for (const fs::path& root : options_.roots) {
      const fs::path folder = !tag_.empty() && is_folder(root / tag_) ? root / tag_ : root;
      std::vector<SavedState> states = states_in(folders_, with_name(folder));
      std::erase_if(states, [](const SavedState& each) { return each.kind != StateKind::dcp; });
      if (states.empty()) continue;
      first_root_ = root;
      given_ = own;
      path_ = top_ = states.front().folder;
      return states;
    }
    return {};
  }

  [[noreturn]] void refuse_nothing() {
    const fs::path folder = tag_.empty() ? path_ : path_ / tag_;
    if (!is_folder(folder)) {
      throw InconsistentError({.file = shown_path(folder)},
                              "there is no such tag" + whats_there(folders_, path_))
          .with_hint(tags_hint(path_, tag_));
    }
    if (!dcp_data_files(folders_[folder]).empty()) {
      throw InconsistentError({.file = shown_path(folder)},
                              "has files of torch.distributed.checkpoint and no .metadata, which "
                              "is written last: the save did not finish, or it was lost")
          .with_hint(
              "an older save, or a copy of .metadata, is needed; --root DIR reads the files "
              "of another node, too");
    }
    throw InconsistentError({.file = shown_path(folder)},
                            "holds no DeepSpeed shards" + whats_there(folders_, folder))
        .with_hint(!tag_.empty() ? tags_hint(path_, tag_)
                                 : "give the folder that has the file `latest`, or a tag's own");
  }

  // `latest` names nothing that is there.
  [[noreturn]] void refuse_latest(const SavedState& state) {
    const fs::path latest = *latest_in(folders_, state.named);
    const std::string there = tags_there(state.named);
    std::string named;
    try {
      named = tag_named_by(latest);
    } catch (const Error& error) {
      error
          .hinted(there.empty() ? "no folder there holds a checkpoint"
                                : "the tags there, for --tag: " + there)
          .raise();
    }
    const fs::path folder = state.named / named;
    if (is_folder(folder)) {
      const bool has_dcp = !dcp_data_files(folders_[folder]).empty();
      path_ = state.named;
      tag_ = named;
      if (has_dcp) refuse_nothing();
      throw InconsistentError({.file = shown_path(folder)},
                              "holds no DeepSpeed shards" + whats_there(folders_, folder))
          .with_hint(tags_hint(state.named, named));
    }
    throw InconsistentError(
        {.file = latest.string()},
        "names the tag '" + named + "', which is not there" + whats_there(folders_, state.named))
        .with_hint(tags_hint(state.named, named));
  }

  TagFolder folder_of(ChosenState choice) {
    const SavedState& state = choice.state;
    TagFolder folder;
    folder.path = state.folder;
    folder.tag = state.tag;
    folder.named = state.named;
    folder.note = choice.note;
    folder.folders = listed_;
    if (choice.note.empty() && !tag_.empty() && state.named != path_) {
      folder.note = "reading " + state.below(path_).string();
    }
    folder.dcp_metadata = state.dcp_metadata;
    folder.rank_name = state.rank_name;
    folder.training = state.training;
    folder.model = model_;
    if (folder.has_only_weights()) {
      if (!options_.roots.empty()) throw no_roots_of_weights(folder.path);
      folder.model = state.model;
    }
    if (state.kind == StateKind::training && !options_.roots.empty()) {
      throw UsageError(shown_path(folder.path) +
                       ": is a training without ranks, which has no other roots");
    }
    for (const SavedState& older : choice.older) {
      folder.older.push_back(older.given());
    }
    for (const SavedState& each : choice.damaged) {
      folder.damaged.emplace_back(each.below(top_), each.damage);
    }
    if (state.kind == StateKind::zero || state.kind == StateKind::universal) {
      folder.shards = list_shards(folders_, folder.path);
      for (const fs::path& root : options_.roots) {
        if (is_of_nobody(folders_, root, folder.tag)) continue;
        add_root(folders_, folder, find_in_root(folders_, root, folder.tag, !options_.tag.empty()));
      }
      sort_shards(folder.shards);
    } else if (state.kind == StateKind::dcp) {
      std::vector<fs::path> roots = options_.roots;
      if (first_root_) {
        std::erase(roots, *first_root_);
        roots.push_back(given_);
      }
      for (const fs::path& root : roots) {
        add_dcp_root(folders_, folder, dcp_folder_in(folders_, root, folder.tag));
      }
    } else if (!options_.roots.empty()) {
      for (const fs::path& root : options_.roots) {
        const fs::path other = is_folder(root / folder.tag) ? root / folder.tag : root;
        check_given_once(folder, with_name(other));
        folder.other_roots.push_back(with_name(other));
      }
    }
    return folder;
  }

  const FindOptions& options_;
  std::shared_ptr<Folders> listed_;
  Folders& folders_ = *listed_;
  std::string tag_;
  fs::path path_;      // that a user means
  fs::path top_;       // that the states are below
  std::string model_;  // that is to be found in the files
  std::set<StateKind> of_file_;
  fs::path optimizer_;                  // of a training, where its file was given
  std::optional<RankName> rank_name_;   // where one rank's file was given
  std::optional<fs::path> first_root_;  // that has the `.metadata`
  fs::path given_;                      // in its place
};

}  // namespace

TagFolder find_tag_folder(const fs::path& path, const FindOptions& options) {
  return Finder(options).find(path);
}

std::vector<fs::path> other_tags(const fs::path& path, const std::string& tag) {
  const fs::path relative = fs::path(tag).lexically_normal();
  const bool stays = !relative.is_absolute() && *relative.begin() != "..";
  std::vector<std::pair<int64_t, fs::path>> others;
  Folders folders;
  const auto look_in = [&](const fs::path& folder) {
    for (const fs::path& child : folders[folder].folders) {
      if (child == path / relative || child.filename().string().starts_with(".")) continue;
      // A folder of the Trainer's checkpoint has the tag's folder in it.
      std::vector<SavedState> states = states_in(folders, child);
      if (states.empty() && latest_in(folders, child)) states = find_states(folders, child);
      if (states.empty()) continue;
      look_into(folders, states.front());
      others.emplace_back(states.front().step.value_or(-1), child);
    }
  };
  if (stays && !tag.empty()) look_in((path / relative).parent_path());
  if (others.empty()) look_in(path);
  std::sort(others.rbegin(), others.rend());
  std::vector<fs::path> paths;
  for (auto& [step, other] : others) paths.push_back(std::move(other));
  return paths;
}

namespace {

// "OWNER/NAME", where there is no folder OWNER.
bool may_be_of_hub(const fs::path& path) {
  const std::string text = path.string();
  std::error_code failed;
  const auto is_of_name = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' ||
           c == '_' || c == '.';
  };
  const size_t slash = text.find('/');
  return slash != text.npos && slash > 0 && slash + 1 < text.size() && text.front() != '.' &&
         std::all_of(text.begin(), text.end(),
                     [&](const char& c) { return &c == &text[slash] || is_of_name(c); }) &&
         !fs::exists(path.parent_path(), failed);
}

}  // namespace

UsageError no_such_folder(const fs::path& path) {
  if (path.empty()) return UsageError("a path cannot be empty");
  UsageError error(path.string() + ": there is no such folder");
  if (may_be_of_hub(path)) {
    return std::move(error).with_hint(download_hint(path.string()));
  }
  fs::path above = fs::path(path).parent_path();
  std::error_code failed;
  while (!above.empty() && !fs::is_directory(above, failed)) above = above.parent_path();
  const fs::path listed = above.empty() ? fs::path(".") : above;
  Folders folders;
  std::string names;
  try {
    names = names_of_folders(folders, listed);
  } catch (const IoError&) {
    return error;
  }
  const std::string where = above.empty() ? "here" : "in " + above.string();
  return std::move(error).with_hint(names.empty() ? "there are no folders " + where
                                                  : "folders " + where + ": " + names);
}

}  // namespace dsckpt
