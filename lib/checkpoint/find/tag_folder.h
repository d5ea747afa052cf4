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
  // Instead of shards: the metadata files of torch.distributed.checkpoint, the model's first.
  std::vector<std::filesystem::path> dcp_metadata = {};
  // Instead of both: the names of the files with each rank's state_dict (SavedState::rank_name).
  std::pair<std::string, std::string> rank_name = {};
  // Instead of these: a training without ranks, or weights without an optimizer.
  TrainingPaths training = {};
  bool has_only_weights() const { return !training.weights.empty() && training.optimizer.empty(); }
  // The file that has everything, a whole training; else `path`.
  const std::filesystem::path& own() const {
    const bool is_file = !training.optimizer.empty() && training.weights == training.optimizer;
    return is_file ? named : path;
  }
  // The model that is still to be found within the files (FindOptions::model), or "".
  std::string model = {};
  // Further folders of the same tag, on other disks. Their files count too.
  std::vector<std::filesystem::path> other_roots = {};
  // The path that find_tag_folder() was given, or the folder that this path means.
  std::filesystem::path named = {};
  // Why it is this one, where the path left a choice (ChosenState::note); else "".
  std::string note = {};
  // The folders to use instead if it is damaged (ChosenState::older).
  std::vector<std::filesystem::path> older = {};
  // The folders beside it that cannot be read, and why.
  std::vector<std::pair<std::filesystem::path, std::string>> damaged = {};
  // The folders that were listed to find it. One thread at a time; nullptr where none were.
  std::shared_ptr<Folders> folders = {};

  // The folder that paths in messages are relative to: the one above `path`. Empty if there are
  // other roots, so that paths stay whole.
  std::filesystem::path display_root() const;
  // The name of one of its files in messages.
  std::string display(const std::filesystem::path& file) const;
  // The place where `file`, a path in this folder, is stored. It is there, in the same place of
  // another root, or in the root itself; `file` if it is nowhere.
  std::filesystem::path in_roots(const std::filesystem::path& file) const;
  // The shards of one kind, in that order.
  std::vector<ShardFile> of_kind(ShardName::Kind kind) const;
  bool has(ShardName::Kind kind) const { return !of_kind(kind).empty(); }
  // True if layers or experts have files of their own.
  bool has_split_files() const;
};

// A hint with the next commands if files of `folder` are damaged. The file `lost` is the damaged
// one of a rank, if one is named; others may tell what it held. `missing`: it may be elsewhere.
std::string cure_of(const TagFolder& folder, const std::optional<ShardName>& lost, bool missing);

// The error for a path that a user gave; it lists the folders that exist.
UsageError no_such_folder(const std::filesystem::path& path);

struct FindOptions {
  std::string tag = {};  // the tag's folder name; "": what the path means
  // Further folders, each with the same tag's folder in it or such a folder itself. Every node kept
  // one on its own disk (checkpoint.use_node_local_storage, FSDP).
  std::vector<std::filesystem::path> roots = {};
  // The name of the model that is meant, if there are several (of_model(); within files of DCP, the
  // reader's).
  std::string model = {};
  // The folders that were listed before, and those that are listed now; nullptr: none before.
  std::shared_ptr<Folders> folders = {};
};

// Lists the checkpoint that `path` means: a folder with `tag` in it; else the choice of choose()
// among find_states(). A shard, a file of DCP or of one rank, and `latest` mean the checkpoint that
// they belong to. Throws IoError or InconsistentError that says what is there instead.
//
// A file that is in several roots counts once if the copies are equal (names, sizes and CRC32s of
// all records). Throws InconsistentError that names both if they are not, and for another tag in
// `latest`. Throws UsageError for a folder that is given twice.
TagFolder find_tag_folder(const std::filesystem::path& path, const FindOptions& options = {});

// The folders of tags other than `tag` in `path`, the newest first. Each is a checkpoint that a
// user can give. A folder that cannot be listed is left out. If `tag` is a path, they are those
// beside it, if it stays in `path` and there are any.
std::vector<std::filesystem::path> other_tags(const std::filesystem::path& path,
                                              const std::string& tag);

// The error for --root with `path`, which holds weights and no checkpoint.
UsageError no_roots_of_weights(const std::filesystem::path& path);
// For universal checkpoints: throws UnsupportedError if there are other roots.
void refuse_other_roots(const TagFolder& universal);

}  // namespace dsckpt
