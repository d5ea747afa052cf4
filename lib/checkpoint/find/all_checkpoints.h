// All checkpoints that lie in a folder.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "checkpoint/find/folders.h"
#include "checkpoint/find/saved_states.h"

namespace dsckpt {

// All states that `path`, a folder, may mean, with the facts in their files. Empty if there are
// fewer than two. Throws IoError.
std::vector<SavedState> several_states(Folders& folders, const std::filesystem::path& path);

// One of several checkpoints, as OpenOptions take it.
struct NamedCheckpoint {
  std::filesystem::path path;
  std::string tag;  // or "": what `path` is, or its `latest` names
  // TagFolder::model, or of several in the folder the one that is meant.
  std::string model;
  std::string name;  // that tells it from the others, for a file
  SavedState state;
};

// All checkpoints in `path`, a folder with tags or a training's output. Those with a known step
// come last, in the order of steps. `model`: only the checkpoints of this model. Throws
// InconsistentError if there is none; IoError.
std::vector<NamedCheckpoint> all_checkpoints(const std::filesystem::path& path,
                                             const std::string& model = {});
// The same without copies of others. Throws as choose() unless all are ages of one model.
std::vector<NamedCheckpoint> all_ages(const std::filesystem::path& path,
                                      const std::string& model = {});

}  // namespace dsckpt
