// The folder that holds the shards of one checkpoint, listed.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <system_error>
#include <vector>

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
  // Instead of shards: the files that say what torch.distributed.checkpoint wrote (DcpFolder).
  std::vector<std::filesystem::path> dcp_metadata = {};
  // Further folders of the same tag, on other disks, whose shards are listed too.
  std::vector<std::filesystem::path> other_roots = {};
  // What find_tag_folder() was given, or the folder that was meant by it.
  std::filesystem::path named = {};
  // Why it is this one, where the path left a choice (NearestCheckpoint::note); else "".
  std::string note = {};
  // Those that were meant as well, should it be damaged (NearestCheckpoint::older).
  std::vector<std::filesystem::path> older = {};

  // What messages name files relative to: the folder above `path`. Nothing, so that paths stay
  // whole, if there are other roots.
  std::filesystem::path display_root() const;
  // What messages call a file of it.
  std::string display(const std::filesystem::path& file) const;
  // Those of one kind, in that order.
  std::vector<ShardFile> of_kind(ShardName::Kind kind) const;
  bool has(ShardName::Kind kind) const { return !of_kind(kind).empty(); }
};

// A hint: the next commands where files of `folder` are damaged. `lost` is the file of a rank that
// is, if one is named; others may tell what it held. `missing`: it may be elsewhere.
std::string cure_of(const TagFolder& folder, const std::optional<ShardName>& lost, bool missing);

// For a path that a user gave; says which folders there are.
UsageError no_such_folder(const std::filesystem::path& path);

// `failed`: what listing it gave.
IoError cannot_list(const std::filesystem::path& folder, const std::error_code& failed);

// Whether `folder` itself has files with shards' names, or is one that torch.distributed.checkpoint
// wrote; false for what is no folder. Throws IoError if it cannot be listed.
bool has_shards(const std::filesystem::path& folder);

// The tag that the file `latest` names: a plain relative path. Throws CorruptError.
std::string tag_named_by(const std::filesystem::path& latest);

// Resolves what a user calls a checkpoint: a folder with `tag` in it; else one with the file
// `latest`, or else `latest_universal`; else a folder that holds shards itself (zero_to_fp32.py
// get_fp32_state_dict_from_zero_checkpoint) or that dcp_folder() takes; else what
// nearest_checkpoint() finds. Throws IoError or InconsistentError that says what is there instead.
//
// `roots` are further folders, each with the same tag's folder in it or such a folder itself: what
// every node kept on a disk of its own (checkpoint.use_node_local_storage). A file that is in
// several of them counts once if the copies are equal (names, sizes and CRC32s of all records);
// InconsistentError that names both if they are not, for another tag in `latest`, and UsageError
// for a folder that is given twice.
TagFolder find_tag_folder(const std::filesystem::path& path, const std::string& tag,
                          const std::vector<std::filesystem::path>& roots = {});

// For universal checkpoints: throws UnsupportedError if there are other roots.
void refuse_other_roots(const TagFolder& universal);

}  // namespace dsckpt
