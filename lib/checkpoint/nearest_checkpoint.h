// What a path means that is no checkpoint's own folder.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace dsckpt {

struct NearestCheckpoint {
  std::filesystem::path path;  // a folder with `latest`, or a tag's own
  std::string tag;             // or "": what `latest` names
  std::string note;            // what was chosen among what; "" where the path leaves no choice
  // Where it is the newest of several: the others, the newest first.
  std::vector<std::filesystem::path> older = {};
};

// `path`, which exists, is one of these:
//  * a shard or the file `latest` (`latest_universal`) of a checkpoint, or a file of
//    torch.distributed.checkpoint: the folder it is in;
//  * a folder without both, a Trainer's or Lightning's output: the newest of the checkpoints at
//    most three levels below it. That is the one with the highest numbers in its name, or else
//    which was changed last;
//  * with `tag`: a folder that has it some levels below, the tag's own folder, or one whose `tag`
//    is itself a folder with `latest`.
// nullopt where `path` needs no help, or where nothing is near. Throws InconsistentError, with a
// list, if checkpoints in several folders come into question, and IoError where a folder cannot be
// listed that may be one.
std::optional<NearestCheckpoint> nearest_checkpoint(const std::filesystem::path& path,
                                                    const std::string& tag);

// One of several checkpoints, as OpenOptions take it.
struct NamedCheckpoint {
  std::filesystem::path path;
  std::string tag;   // or "": what `path` is, or its `latest` names
  std::string name;  // of the folder that tells it from the others
};

// All that `path` holds, a folder with tags or a training's output, the newest last (as
// nearest_checkpoint() has it). Throws InconsistentError if there is none, or if they are in
// several folders; IoError.
std::vector<NamedCheckpoint> all_checkpoints(const std::filesystem::path& path);

// The folders of other tags than `tag` in `path`, the newest first, each a checkpoint to give; none
// that cannot be listed. `tag` may be a path: then those beside it, if it stays in `path` and there
// are any.
std::vector<std::filesystem::path> other_tags(const std::filesystem::path& path,
                                              const std::string& tag);

// Whether `file` is `latest` or `latest_universal` by its name, in any form that is stored.
bool is_latest(const std::filesystem::path& file);
// `latest` of a folder, or else `latest_universal`; stored in any form.
std::optional<std::filesystem::path> latest_in(const std::filesystem::path& folder);

}  // namespace dsckpt
