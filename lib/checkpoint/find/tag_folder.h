// The files of the checkpoint that a path means, listed.
#pragma once

#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <system_error>
#include <vector>

#include "checkpoint/find/folders.h"
#include "checkpoint/find/saved_states.h"
#include "deepspeed/shard_name.h"
#include "dsckpt/error.h"

namespace dsckpt {

struct ShardFile {
  ShardName name;
  std::filesystem::path path;
  // Why it cannot be read, if that is known before it is opened.
  std::string damage = {};
};

struct TagFolder {
  std::filesystem::path path;
  std::string tag;
  // Sorted by kind, mp rank, dp rank; files that are not shards are left out.
  std::vector<ShardFile> shards;
  // Instead of shards: the files that say what torch.distributed.checkpoint wrote, the model's
  // first.
  std::vector<std::filesystem::path> dcp_metadata = {};
  // Instead of both: what the files of each rank's state_dict are called (SavedState::rank_name).
  std::pair<std::string, std::string> rank_name = {};
  // Instead of these: a training without ranks.
  TrainingPaths training = {};
  // Further folders of the same tag, on other disks, whose files count, too.
  std::vector<std::filesystem::path> other_roots = {};
  // What find_tag_folder() was given, or the folder that was meant by it.
  std::filesystem::path named = {};
  // Why it is this one, where the path left a choice (ChosenState::note); else "".
  std::string note = {};
  // Those that were meant as well, should it be damaged (ChosenState::older).
  std::vector<std::filesystem::path> older = {};
  // Those beside it that cannot be read, and why.
  std::vector<std::pair<std::filesystem::path, std::string>> damaged = {};
  // The folders that were listed to find it. One thread at a time; nullptr where none were.
  std::shared_ptr<Folders> folders = {};

  // What messages name files relative to: the folder above `path`. Nothing, so that paths stay
  // whole, if there are other roots.
  std::filesystem::path display_root() const;
  // What messages call a file of it.
  std::string display(const std::filesystem::path& file) const;
  // Where `file`, a path in this folder, is stored: there, or in the same place of another root, or
  // in the root itself; `file` if it is nowhere.
  std::filesystem::path in_roots(const std::filesystem::path& file) const;
  // Those of one kind, in that order.
  std::vector<ShardFile> of_kind(ShardName::Kind kind) const;
  bool has(ShardName::Kind kind) const { return !of_kind(kind).empty(); }
  // Whether layers or experts have files of their own.
  bool has_split_files() const;
};

// A hint: the next commands where files of `folder` are damaged. `lost` is the file of a rank that
// is, if one is named; others may tell what it held. `missing`: it may be elsewhere.
std::string cure_of(const TagFolder& folder, const std::optional<ShardName>& lost, bool missing);

// For a path that a user gave; says which folders there are.
UsageError no_such_folder(const std::filesystem::path& path);

struct FindOptions {
  std::string tag = {};  // the tag's folder name; "": what the path means
  // Further folders, each with the same tag's folder in it or such a folder itself: what every node
  // kept on a disk of its own (checkpoint.use_node_local_storage, FSDP).
  std::vector<std::filesystem::path> roots = {};
  // Of several models the name of the one that is meant (of_model(); within files of DCP, the
  // reader's).
  std::string model = {};
};

// Lists what `path` means: a folder with `tag` in it; else what choose() finds among find_states().
// A shard, a file of DCP or of one rank, and `latest` mean the checkpoint that they are of. Throws
// IoError or InconsistentError that says what is there instead.
//
// A file that is in several roots counts once if the copies are equal (names, sizes and CRC32s of
// all records); InconsistentError that names both if they are not, for another tag in `latest`, and
// UsageError for a folder that is given twice.
TagFolder find_tag_folder(const std::filesystem::path& path, const FindOptions& options = {});

// All states that `path`, a folder, may mean, with what their files say; none if there is one
// alone, or none. Throws IoError.
std::vector<SavedState> several_states(const std::filesystem::path& path);

// One of several checkpoints, as OpenOptions take it.
struct NamedCheckpoint {
  std::filesystem::path path;
  std::string tag;   // or "": what `path` is, or its `latest` names
  std::string name;  // that tells it from the others, for a file
  SavedState state;
};

// All that `path` holds, a folder with tags or a training's output, those with a known step behind
// the others, in its order. `model`: only that one's. Throws InconsistentError if there is none;
// IoError.
std::vector<NamedCheckpoint> all_checkpoints(const std::filesystem::path& path,
                                             const std::string& model = {});
// Throws as choose() unless they are ages of one model.
void check_ages(const std::filesystem::path& path, const std::vector<NamedCheckpoint>& checkpoints);

// The folders of other tags than `tag` in `path`, the newest first, each a checkpoint to give; none
// that cannot be listed. `tag` may be a path: then those beside it, if it stays in `path` and there
// are any.
std::vector<std::filesystem::path> other_tags(const std::filesystem::path& path,
                                              const std::string& tag);

// For universal checkpoints: throws UnsupportedError if there are other roots.
void refuse_other_roots(const TagFolder& universal);

}  // namespace dsckpt
