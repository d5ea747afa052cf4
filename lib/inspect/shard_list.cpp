#include "inspect/shard_list.h"

#include <system_error>

#include "base/keyed_hash.h"
#include "checkpoint/find/saved_states.h"
#include "checkpoint/find/tag_folder.h"
#include "checkpoint/shard.h"
#include "dsckpt/error.h"
#include "format/dcp_metadata.h"
#include "io/input_file.h"

namespace dsckpt {
namespace fs = std::filesystem;

std::vector<ListedShard> listed_shards(const fs::path& path, const ContentsOptions& options) {
  const TagFolder folder = find_tag_folder(path, {.tag = options.tag,
                                                  .roots = options.roots,
                                                  .model = options.model,
                                                  .folders = options.folders});
  InputFiles inputs;
  std::vector<UnreadableShard> unreadable;
  open_shards(inputs, folder.shards, folder.display_root(), &unreadable);
  KeyedMap<std::string, std::string> why;
  for (const UnreadableShard& shard : unreadable) why.emplace(shard.file.path, shard.why);
  std::vector<ListedShard> listed;
  for (const ShardFile& shard : folder.shards) {
    std::error_code failed;
    const uintmax_t size = fs::file_size(shard.path, failed);
    const auto found = why.find(shard.path);
    listed.push_back({shard.path, folder.display(shard.path), failed ? 0 : size,
                      found == why.end() ? "" : found->second});
  }
  Folders& folders = *folder.folders;
  // The data files of torch.distributed.checkpoint belong to their `.metadata`.
  for (const fs::path& metadata : folder.dcp_metadata) {
    std::vector<fs::path> files = dcp_data_files(folders[metadata.parent_path()]);
    files.insert(files.begin(), metadata);
    for (const fs::path& file : files) {
      std::string wrong;
      try {
        const InputFile input(file.string());
        if (file == metadata) read_dcp_metadata(input);
      } catch (const Error& error) {
        wrong = error.message();
      }
      std::error_code failed;
      const uintmax_t size = fs::file_size(file, failed);
      listed.push_back({file, folder.display(file), failed ? 0 : size, wrong});
    }
  }
  return listed;
}

}  // namespace dsckpt
