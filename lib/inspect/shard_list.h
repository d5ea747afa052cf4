// Lists the files of a checkpoint that cannot be read as a whole.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "inspect/contents.h"

namespace dsckpt {

struct ListedShard {
  std::filesystem::path path;
  std::string display;  // as messages call it
  uint64_t bytes = 0;   // on the disk
  std::string why;      // it cannot be opened; "" if it can
};

// In the order of TagFolder::shards. For torch.distributed.checkpoint: `.metadata` and the data
// files beside it, by name. Opens each file by itself. Throws as find_tag_folder().
std::vector<ListedShard> listed_shards(const std::filesystem::path& path,
                                       const ContentsOptions& options);

}  // namespace dsckpt
