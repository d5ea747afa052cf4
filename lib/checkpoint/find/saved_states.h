// What was saved in a folder and below it: a candidate for each saved state of a training.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "checkpoint/find/folders.h"
#include "dsckpt/dtype.h"

namespace dsckpt {

enum class StateKind : uint8_t {
  zero,        // native shards of any stage
  universal,   // a Universal Checkpoint
  dcp,         // torch.distributed.checkpoint
  rank_files,  // one rank's state_dict of DTensor or ShardedTensor in each file
  training,    // weights, and the optimizer's state_dict in a file beside them
};
std::string_view to_string(StateKind kind);

// The files of a training without ranks. One of both, or the weights' as Weights::open takes them
// (a file, an index, a folder) and the optimizer's.
struct TrainingPaths {
  std::filesystem::path weights = {};
  std::filesystem::path optimizer = {};
};

// One state of one model. Of one folder, or of Accelerate's two of DCP.
struct SavedState {
  StateKind kind = StateKind::zero;
  std::filesystem::path folder = {};  // that has its files
  // What a user gives for it: `folder`, or the one above, with `latest` that names it.
  std::filesystem::path named = {};
  std::string tag = {};    // `folder` from `named`, or its name
  bool is_latest = false;  // a file `latest` (`latest_universal`) names it
  // Of dcp: the files that say what there is, the model's first.
  std::vector<std::filesystem::path> dcp_metadata = {};
  // Of rank_files: what the files of its model are called before and behind the rank's number.
  std::pair<std::string, std::string> rank_name = {};
  // Of training.
  TrainingPaths training = {};
  std::string model = {};  // of several in the folder what the file of its weights is called

  // What tells it from the others: a path below `above`.
  std::filesystem::path below(const std::filesystem::path& above) const;

  // What the files themselves say, by look_into():
  std::optional<int64_t> step = {};  // how often the optimizer stepped
  // The model's parameters, by name; a shape that is not told is empty.
  std::vector<std::pair<std::string, Shape>> params = {};
  std::string damage = {};  // why the files do not say it
};

// The states in `folder` itself, whatever `latest` says. Several where it holds several models, or
// files of several kinds.
std::vector<SavedState> states_in(Folders& folders, const std::filesystem::path& folder);

// `latest` of a folder, or else `latest_universal`; stored in any form.
std::optional<std::filesystem::path> latest_in(Folders& folders,
                                               const std::filesystem::path& folder);
std::optional<std::filesystem::path> latest_in(const std::filesystem::path& folder);
// Whether `file` is one of them by its name, in any form that is stored.
bool is_latest(const std::filesystem::path& file);
// The tag that the file names: a plain relative path. Throws CorruptError.
std::string tag_named_by(const std::filesystem::path& latest);

// The states that `path`, a folder, may mean, by path: those in it; else, where it has `latest`,
// that of each tag; else those of the folders at most three levels below it. A folder whose
// `latest` names what is not there is a state that is damaged. Throws IoError where a folder cannot
// be listed that may hold one.
std::vector<SavedState> find_states(Folders& folders, const std::filesystem::path& path);

// Reads `step` and `params` of the files that have them: one of model states (global_steps), the
// `.metadata` and the steps of a few parameters of DCP, one rank's files, an optimizer's numbers
// and shapes of a training; a trainer_state.json beside them where these say no step. Files that
// cannot be read are `damage`.
void look_into(Folders& folders, SavedState& state);

// Whether the file, of one rank by its name, has DTensors or ShardedTensors in its state_dict.
bool has_rank_tensors(const std::filesystem::path& path);

// Whether the file is one of a whole training, or of an optimizer alone (training_file.h), and no
// shard. One that has nothing but weights in a dict of a dict is, if Lightning wrote it.
bool is_training_file(const std::filesystem::path& path);

// Accelerate's folders are called that, and a number: accelerate/utils/constants.py
// FSDP_MODEL_NAME, OPTIMIZER_NAME.
inline constexpr std::string_view kAccelerateModel = "pytorch_model_fsdp_";
inline constexpr std::string_view kAccelerateOptimizer = "optimizer_";

// The files of tensors of DCP, packed or not, by their names, whatever else `folder` has or lacks.
std::vector<std::filesystem::path> dcp_data_files(const ListedFolder& folder);
// Whether a file of such a folder is called like that: `.metadata`, `__0_0.distcp`.
bool is_dcp_name(std::string_view file_name);
// Whether the folder has a `.metadata` that is a pickle (others have texts of that name).
bool has_dcp_metadata(Folders& folders, const std::filesystem::path& folder);

}  // namespace dsckpt
