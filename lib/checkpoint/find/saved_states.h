// Finds the saved states of trainings in a folder and below it: one candidate for each.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "checkpoint/find/folders.h"
#include "checkpoint/find/weights_files.h"
#include "dsckpt/dtype.h"
#include "pickle/pickle.h"

namespace dsckpt {

enum class StateKind : uint8_t {
  zero,        // native shards of any stage
  universal,   // a Universal Checkpoint
  dcp,         // torch.distributed.checkpoint
  rank_files,  // one rank's state_dict of DTensor or ShardedTensor in each file
  training,    // weights, and the optimizer's state_dict in a file beside them
  weights,     // alone
};
std::string_view to_string(StateKind kind);

// The files of a training without ranks. There is one file for both, or weights as Weights::open
// takes them (a file, an index, a folder) and the optimizer's file.
struct TrainingPaths {
  std::filesystem::path weights = {};
  std::filesystem::path optimizer = {};
};

// One state of one model. It lies in one folder, or in Accelerate's two DCP folders.
struct SavedState {
  StateKind kind = StateKind::zero;
  std::filesystem::path folder = {};  // that has its files
  // The path that a user gives for it: `folder`, or the folder above, with a `latest` that names
  // it.
  std::filesystem::path named = {};
  std::string tag = {};    // `folder` from `named`, or its name
  bool is_latest = false;  // a file `latest` (`latest_universal`) names it
  // For dcp: the metadata files, the model's first.
  std::vector<std::filesystem::path> dcp_metadata = {};
  // For rank_files: the parts of its model's file names before and behind the rank's number.
  std::pair<std::string, std::string> rank_name = {};
  // For training, and for weights without an optimizer.
  TrainingPaths training = {};
  // The name of the file of its weights or of its first rank, if the folder has several models.
  std::string model = {};
  // One of its files, which means this state where a user gives it. Empty if none is there.
  std::filesystem::path file = {};

  // True if one file has all of it: a whole training. Then `named` is the file.
  bool is_file() const;
  // Its place: the file, or the folder that has its files.
  const std::filesystem::path& own() const { return is_file() ? named : folder; }
  // The path that means this state.
  const std::filesystem::path& given() const { return is_latest || is_file() ? named : folder; }
  // The path below `above` that tells it from the others.
  std::filesystem::path below(const std::filesystem::path& above) const;

  // Facts from the files themselves, by look_into():
  std::optional<int64_t> step = {};  // how often the optimizer stepped
  // The model's parameters, by name; a shape that is not told is empty.
  std::vector<std::pair<std::string, Shape>> params = {};
  std::string damage = {};  // why the files do not say it
};

// The states that the files of `folder` make together, whatever `latest` says. There are several if
// it holds several models, or files of several kinds.
std::vector<SavedState> states_in(Folders& folders, const std::filesystem::path& folder);
// The files in `folder` that are each a whole training, and those that may be and cannot be read.
std::vector<SavedState> whole_trainings_in(Folders& folders, const std::filesystem::path& folder);
// Weights in `folder`, by WeightsSet::name where there are several models.
std::vector<SavedState> weights_in(Folders& folders, const std::filesystem::path& folder);
std::vector<SavedState> states_of(const std::filesystem::path& folder,
                                  const std::vector<WeightsSet>& sets);

// `latest` of a folder, or else `latest_universal`; stored in any form.
std::optional<std::filesystem::path> latest_in(Folders& folders,
                                               const std::filesystem::path& folder);
std::optional<std::filesystem::path> latest_in(const std::filesystem::path& folder);
// True if `file` is one of them by its name, in any form that is stored.
bool is_latest(const std::filesystem::path& file);
// The tag that the file names: a plain relative path. Throws CorruptError.
std::string tag_named_by(const std::filesystem::path& latest);

// The states that `path`, a folder, may mean, by path. They are those in it. If there are none and
// it has `latest`, they are the states of the tags. Else they are those of folders at most three
// levels below it, and whole trainings in files there. Weights count only if there is nothing else.
// A folder whose `latest` names a missing tag is a damaged state. Throws IoError if a folder that
// may hold a state cannot be listed, and InconsistentError if there are too many of them.
std::vector<SavedState> find_states(Folders& folders, const std::filesystem::path& path);

// Reads `step` and `params` from the files that have them. These are one model-states file
// (global_steps), or the `.metadata` and the steps of a few parameters of DCP. They are one rank's
// files, or an optimizer's numbers and shapes of a training. If these have no step, it comes from a
// trainer_state.json beside them. Files that cannot be read are `damage`.
void look_into(Folders& folders, SavedState& state);

// True if the file, of one rank by its name, has DTensors or ShardedTensors in its state_dict.
bool has_rank_tensors(const std::filesystem::path& path);
// The same of the content of a file.
bool has_rank_tensors(const pickle::Value& root);

// The kind of the file (training_file.h); shards are `other`. A file with only weights in a dict of
// a dict counts as a training if Lightning wrote it. Any name.
FileContent file_content(Folders& folders, const std::filesystem::path& path);
// True if the file is one of a whole training, or of an optimizer alone.
bool is_training_file(Folders& folders, const std::filesystem::path& path);

// Accelerate's folders have these names, and a number: accelerate/utils/constants.py
// FSDP_MODEL_NAME, OPTIMIZER_NAME.
inline constexpr std::string_view kAccelerateModel = "pytorch_model_fsdp_";
inline constexpr std::string_view kAccelerateOptimizer = "optimizer_";

// The files of tensors of DCP, packed or not, by their names, whatever else `folder` has or lacks.
std::vector<std::filesystem::path> dcp_data_files(const ListedFolder& folder);
// True if a file of such a folder has a name of DCP's: `.metadata`, `__0_0.distcp`.
bool is_dcp_name(std::string_view file_name);
// True if the folder has a `.metadata` that is a pickle (others have texts of that name).
bool has_dcp_metadata(Folders& folders, const std::filesystem::path& folder);

}  // namespace dsckpt
