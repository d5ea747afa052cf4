// The folder that holds the shards of one checkpoint, listed.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "checkpoint/shard_name.h"

namespace dsckpt {

struct ShardFile {
  ShardName name;
  std::filesystem::path path;
};

struct TagFolder {
  std::filesystem::path path;
  std::string tag;
  // Sorted by kind, mp rank, dp rank; files that are not shards are left out.
  std::vector<ShardFile> shards;

  // Those of one kind, in that order.
  std::vector<ShardFile> of_kind(ShardName::Kind kind) const;
  bool has(ShardName::Kind kind) const { return !of_kind(kind).empty(); }
};

// Whether `folder` itself has files with shards' names; false if it cannot be listed.
bool has_shards(const std::filesystem::path& folder);

// Resolves what a user calls a checkpoint: a folder with `tag` in it; else one with the file
// `latest`, or else `latest_universal`; else a folder that holds shards itself. zero_to_fp32.py
// get_fp32_state_dict_from_zero_checkpoint. Throws IoError or InconsistentError that says what is
// there instead.
TagFolder find_tag_folder(const std::filesystem::path& path, const std::string& tag);

}  // namespace dsckpt
