// RunFolder: the checkpoints in a training's folder, as they come and go.
//
// A checkpoint is a folder in it. It is a tag's folder beside the file `latest` (DeepSpeed's
// save_checkpoint), or a folder with all of a save in it. The Trainer's checkpoint-500 is one, and
// Lightning and Accelerate write such folders.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "checkpoint/find/saved_states.h"
#include "ckpt_pack/keep/record.h"

namespace dsckpt::pack {

// One of them, as it was at a moment.
struct RunCheckpoint {
  std::string name = {};
  bool is_tag = false;
  std::vector<SavedState> states = {};
  std::vector<RunFile> files = {};  // by path
  // Entries that are neither file nor folder, such as links: the checkpoint cannot be kept as it
  // is.
  std::vector<std::string> others = {};
  int64_t changed = 0;  // when a file or folder of it was changed last, as `modified`

  bool same_as(const RunCheckpoint& other) const {
    return files == other.files && others == other.others;
  }
  // True if every entry there is among `all`, by path, as described there: the training may have
  // begun to remove it.
  bool is_within(const std::vector<RunFile>& all) const;
};

class RunFolder {
 public:
  explicit RunFolder(std::filesystem::path path) : path_(std::move(path)) {}
  const std::filesystem::path& path() const { return path_; }

  // All that look like one, by name; some may be half written. Throws IoError if the folder is not
  // there.
  std::vector<RunCheckpoint> list() const;
  // The checkpoint of that name; nothing if it is not there, or on its way.
  std::optional<RunCheckpoint> look(const std::string& name) const;
  // The files in `folder`, which was one of them. Nothing if it cannot be listed.
  static std::optional<RunCheckpoint> files_in(const std::filesystem::path& folder);

  // The tag that its `latest` names; "" without one.
  std::string latest() const;
  // By its files; nothing if they do not say it. Throws what reading them throws.
  std::optional<int64_t> step_of(const RunCheckpoint& checkpoint) const;
  // The reason why a save is not over although nothing changes any more: `latest`, which is written
  // last, or the Trainer's own file. "" if there is none. `all`: list().
  std::string unfinished(const RunCheckpoint& checkpoint,
                         const std::vector<RunCheckpoint>& all) const;
  // The value of `metric` at the checkpoint's step, by the Trainer's trainer_state.json; nothing if
  // that file lacks it.
  std::optional<double> metric_of(const RunCheckpoint& checkpoint, const std::string& metric) const;

  // The files beside tags' folders, which belong to the run: those that have not changed for
  // `nanoseconds`. Others are logs.
  std::vector<std::filesystem::path> beside(int64_t nanoseconds) const;

 private:
  std::filesystem::path path_;
};

// Nanoseconds since the epoch.
int64_t now_ns();

}  // namespace dsckpt::pack
