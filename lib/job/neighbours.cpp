#include "job/neighbours.h"

#include <algorithm>
#include <charconv>
#include <map>
#include <optional>
#include <set>
#include <string_view>
#include <system_error>
#include <utility>

#include "checkpoint/find/rank_name.h"
#include "checkpoint/find/saved_states.h"
#include "checkpoint/find/tag_folder.h"
#include "checkpoint/weights.h"
#include "deepspeed/shard_name.h"
#include "dsckpt/dtype.h"
#include "dsckpt/error.h"
#include "exec/staging_owner.h"
#include "format/checked_records.h"
#include "job/links.h"
#include "job/source.h"

namespace dsckpt {
namespace fs = std::filesystem;
namespace {

constexpr std::string_view kTrainerOfOneRank = "rng_state.pth";

// Returns whether the tools themselves made this file.
bool is_of_tools(std::string_view name) {
  return name.starts_with(kStagingPrefix) || name.starts_with(kKeepPrefix);
}

bool is_folder(const fs::path& path) {
  std::error_code ignored;
  return fs::symlink_status(path, ignored).type() == fs::file_type::directory;
}

// Files of one kind, each with a rank's random numbers.
struct RandomStates {
  std::string_view prefix;
  std::string_view suffix;
  std::map<uint32_t, fs::path> files = {};  // by rank

  std::string name_of(uint32_t rank) const {
    return std::string(prefix) + std::to_string(rank) + std::string(suffix);
  }

  std::optional<uint32_t> rank_of(std::string_view name) const {
    if (!name.starts_with(prefix) || !name.ends_with(suffix)) return std::nullopt;
    if (name.size() <= prefix.size() + suffix.size()) return std::nullopt;
    uint32_t rank = 0;
    const char* end = name.data() + name.size() - suffix.size();
    const auto [rest, error] = std::from_chars(name.data() + prefix.size(), end, rank);
    if (error != std::errc() || rest != end || name != name_of(rank)) return std::nullopt;
    return rank;
  }
};

// Returns "rank 3" or "ranks 0, 2 to 7", or "" for none. `ranks` must ascend.
std::string ranks_text(const std::vector<uint32_t>& ranks) {
  std::string text;
  for (size_t i = 0; i < ranks.size();) {
    size_t last = i;
    while (last + 1 < ranks.size() && ranks[last + 1] == ranks[last] + 1) ++last;
    text += (text.empty() ? "" : ", ") + std::to_string(ranks[i]);
    if (last > i) text += " to " + std::to_string(ranks[last]);
    i = last + 1;
  }
  if (text.empty()) return "";
  return (ranks.size() == 1 ? "rank " : "ranks ") + text;
}

class Finder {
 public:
  explicit Finder(const CheckpointPlace& place) : place_(place), same_run_(true) {
    if (!listed_) listed_ = std::make_shared<Folders>();
  }
  Finder(const CheckpointPlace& place, uint32_t old_ranks, uint32_t new_ranks) : Finder(place) {
    same_run_ = false;
    old_ranks_ = old_ranks;
    new_ranks_ = new_ranks;
  }

  Neighbours find() {
    std::error_code ignored;
    folders_ = {place_.named, place_.tag_folder};
    for (const fs::path& root : place_.other_roots) {
      folders_.push_back(root);
      if (is_stored(root.parent_path() / "latest")) folders_.push_back(root.parent_path());
    }
    own_states_ = states_of_others(place_.named);
    const bool is_tags = fs::equivalent(place_.named, place_.tag_folder, ignored);
    if (!is_tags || !own_states_.empty()) {
      add_named_folder(place_.named);
      for (const fs::path& root : place_.other_roots) {
        if (is_stored(root.parent_path() / "latest")) add_named_folder(root.parent_path());
      }
      if (!same_run_) add_all_random_states();
    }
    if (!is_tags || own_states_.empty()) add_tag_folder(place_.tag_folder);
    for (const fs::path& root : place_.other_roots) add_tag_folder(root);
    std::sort(result_.files.begin(), result_.files.end(),
              [](const Neighbour& a, const Neighbour& b) { return a.destination < b.destination; });
    return std::move(result_);
  }

 private:
  std::vector<fs::path> list(const fs::path& folder) {
    std::error_code failed;
    if (!fs::is_directory(folder, failed)) {
      throw cannot_list(folder, failed ? failed : std::make_error_code(std::errc::not_a_directory));
    }
    const ListedFolder& listed = (*listed_)[folder];
    std::vector<fs::path> paths = listed.files;
    for (const fs::path& path : listed.folders) paths.push_back(content_path(path));
    std::sort(paths.begin(), paths.end());
    return paths;
  }

  bool is_shard(const fs::path& path) {
    const std::string name = path.filename().string();
    if (parse_shard_name(name)) return true;
    return is_dcp_name(name) && has_dcp_metadata(*listed_, path.parent_path());
  }

  bool is_tag(const fs::path& folder) {
    const std::vector<fs::path> paths = list(folder);
    return std::any_of(paths.begin(), paths.end(),
                       [&](const fs::path& path) { return is_shard(path); });
  }

  bool holds_shards(const fs::path& folder) {
    const std::vector<fs::path> paths = list(folder);
    return std::any_of(paths.begin(), paths.end(), [&](const fs::path& path) {
      return is_folder(path) ? holds_shards(path) : is_shard(path);
    });
  }

  void note(std::string text) {
    const auto& notes = result_.notes;
    if (std::find(notes.begin(), notes.end(), text) == notes.end()) {
      result_.notes.push_back(std::move(text));
    }
  }

  void add(const fs::path& source, const fs::path& destination) {
    std::string name = destination.lexically_normal().generic_string();
    if (added_.insert(name).second) result_.files.push_back({source, std::move(name)});
  }

  // Returns whether `path`, which is not a folder, is a file to copy. Adds a note if it is not.
  bool is_file(const fs::path& path, const fs::path& name) {
    std::error_code ignored;
    refuse_two_forms(path);
    switch (fs::status(stored_path(path).value_or(path), ignored).type()) {
      case fs::file_type::regular:
        if (place_.follow_links || !leads_out(stored_path(path).value_or(path), folders_)) {
          return true;
        }
        note(left_out_link(name.generic_string()));
        return false;
      case fs::file_type::not_found:
        note(name.generic_string() + " is a broken link and is left out");
        return false;
      case fs::file_type::directory:
        if (!is_tag_folder(path)) {
          note(name.generic_string() + " is a link to a folder and is left out");
        }
        return false;
      default:
        note(name.generic_string() + " is neither file nor folder and is left out");
        return false;
    }
  }

  void add_folder(const fs::path& folder, const fs::path& destination) {
    for (const fs::path& path : list(folder)) {
      const fs::path name = destination / path.filename();
      if (is_folder(path)) {
        add_folder(path, name);
      } else if (is_file(path, name)) {
        add(path, name);
      }
    }
  }

  bool is_tag_folder(const fs::path& path) const {
    std::error_code ignored;
    return fs::equivalent(path, place_.tag_folder, ignored) ||
           std::any_of(place_.other_roots.begin(), place_.other_roots.end(),
                       [&](const fs::path& root) { return fs::equivalent(path, root, ignored); });
  }

  // Returns the saved states that are not ZeRO's shards.
  std::vector<SavedState> states_of_others(const fs::path& folder) {
    std::vector<SavedState> states = states_in(*listed_, folder);
    std::erase_if(states, [](const SavedState& state) {
      return state.kind == StateKind::zero || state.kind == StateKind::universal;
    });
    return states;
  }

  // Returns whether a file of the named folder belongs to another framework's checkpoint.
  bool is_of_state(const fs::path& path) {
    if (own_states_.empty()) return false;
    const auto rank = parse_rank_name(path.filename().string());
    return is_shard(path) || is_weights_name(path) ||
           std::any_of(own_states_.begin(), own_states_.end(), [&](const SavedState& state) {
             return path == state.training.optimizer || path == state.training.weights ||
                    (state.kind == StateKind::rank_files && rank && rank->ranks);
           });
  }

  void add_named_folder(const fs::path& named) {
    for (const fs::path& path : list(named)) {
      const std::string name = path.filename().string();
      if (is_of_state(path)) continue;
      if (name == "latest" || name == "latest_universal" || is_of_tools(name)) continue;
      if (is_folder(path)) {
        if (name == "zero" || is_tag(path) || place_.tag.starts_with(name + "/")) continue;
        if (holds_shards(path)) {
          note(name + " is a folder with another checkpoint in it and is left out");
        } else {
          add_folder(path, name);
        }
      } else if (is_file(path, name)) {
        if (same_run_) {
          add(path, name);
        } else if (const auto rank = trainer_.rank_of(name)) {
          trainer_.files.emplace(*rank, path);
        } else if (const auto other = accelerate_.rank_of(name)) {
          accelerate_.files.emplace(*other, path);
        } else if (name == kTrainerOfOneRank) {
          if (!of_one_rank_) of_one_rank_ = path;
        } else {
          add(path, name);
        }
      }
    }
  }

  void add_all_random_states() {
    if (of_one_rank_ && old_ranks_ == 1) {
      if (const auto other = trainer_.files.find(0); other != trainer_.files.end()) {
        note_foreign(other->second);
      }
      trainer_.files[0] = *of_one_rank_;
    } else if (of_one_rank_) {
      note_foreign(*of_one_rank_);
    }
    add_random_states(trainer_, new_ranks_ == 1);
    add_random_states(accelerate_, false);
  }

  void note_foreign(const fs::path& path) {
    note(path.filename().string() + " does not belong to a run on " + counted(old_ranks_, "rank") +
         " and is left out");
  }

  void add_random_states(const RandomStates& states, bool for_one_rank) {
    std::vector<uint32_t> gone;
    bool has_any = false;
    for (const auto& [rank, path] : states.files) {
      if (rank >= old_ranks_) {
        note_foreign(path);
        continue;
      }
      has_any = true;
      if (rank >= new_ranks_) {
        gone.push_back(rank);
      } else {
        add(path, for_one_rank ? std::string(kTrainerOfOneRank) : states.name_of(rank));
      }
    }
    if (!has_any) return;
    std::vector<uint32_t> fresh;
    for (uint32_t rank = 0; rank < new_ranks_; ++rank) {
      if (rank >= old_ranks_ || !states.files.contains(rank)) fresh.push_back(rank);
    }
    if (!fresh.empty()) {
      note(ranks_text(fresh) + (fresh.size() == 1
                                    ? " has no RNG state and starts with a fresh one"
                                    : " have no RNG state and start with a fresh one"));
    }
    if (!gone.empty()) {
      note((gone.size() == 1 ? "the RNG state of " : "the RNG states of ") + ranks_text(gone) +
           (gone.size() == 1 ? " is left out" : " are left out"));
    }
  }

  void add_tag_folder(const fs::path& folder) {
    for (const fs::path& path : list(folder)) {
      const std::string file = path.filename().string();
      const fs::path name = fs::path(place_.tag) / file;
      if (file == "latest" || file == "latest_universal" || file == "zero" ||
          file == "offloaded_tensors" || is_of_tools(file) || is_shard(path)) {
        continue;
      }
      if (is_folder(path)) {
        note(name.generic_string() + " is a folder beside the shards and is left out");
      } else if (is_file(path, name)) {
        add(path, name);
      }
    }
  }

  const CheckpointPlace& place_;
  std::shared_ptr<Folders> listed_ = place_.folders;
  bool same_run_;
  std::vector<fs::path> folders_;       // of the checkpoint
  std::vector<SavedState> own_states_;  // of other frameworks, in the named folder
  uint32_t old_ranks_ = 0;
  uint32_t new_ranks_ = 0;
  Neighbours result_;
  std::set<std::string> added_;  // destinations
  RandomStates trainer_{"rng_state_", ".pth"};
  RandomStates accelerate_{"random_states_", ".pkl"};
  std::optional<fs::path> of_one_rank_;
};

}  // namespace

Neighbours find_neighbours(const CheckpointPlace& place, uint32_t old_ranks, uint32_t new_ranks) {
  return Finder(place, old_ranks, new_ranks).find();
}

Neighbours find_neighbours(const CheckpointPlace& place) {
  return Finder(place).find();
}

CheckpointPlace place_in(const Source& source, const std::string& tag) {
  const Checkpoint& checkpoint = *source->checkpoint;
  const CheckpointFacts& facts = checkpoint.facts();
  const bool is_others = facts.is_foreign() || facts.has_given_states();
  return {.named = source->path,
          .tag_folder = is_others ? source->path : checkpoint.tag_folder(),
          .tag = tag,
          .other_roots = checkpoint.folder().other_roots,
          .follow_links = source->options.follow_links,
          .folders = checkpoint.folder().folders};
}

bool is_of_program(const Neighbour& file, const std::string& tag) {
  return file.destination != kConverterScript && !is_weights_name(file.destination) &&
         !file.destination.starts_with(tag + "/");
}

void lay_out_neighbours(InputFiles& inputs, const std::vector<Neighbour>& files,
                        PlanBuilder& plan) {
  for (const Neighbour& file : files) {
    const FileId id = inputs.add(file.source);
    put_file(plan, plan.add_output(file.destination, inputs[id].size()), inputs, id);
  }
}

}  // namespace dsckpt
