// Weights: files of named tensors that are not shards of ZeRO, as torch.save, safetensors and
// huggingface_hub write them. Metadata only.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "checkpoint/find/folders.h"
#include "checkpoint/find/tag_folder.h"
#include "checkpoint/find/weights_files.h"
#include "checkpoint/weights_file.h"
#include "format/tensors_in.h"
#include "io/input_file.h"
#include "plan/tensor_source.h"

namespace dsckpt {

// The files of one model's weights in a folder.
struct FoundWeights {
  std::vector<std::filesystem::path> files = {};  // one index, or the files themselves
  std::string note = {};   // the other forms of the model that are there; "" if there are none
  std::string model = {};  // what is asked for, unless it is the name of these files
};
// The weights of `model` in a folder, by the name of its files without endings and numbers. For ""
// there may be one model. It may be there in several forms, as Weights::open has them. Empty if the
// folder has no weights. Throws InconsistentError and UsageError that list the models.
FoundWeights find_weights(Folders& folders, const std::filesystem::path& folder,
                          const std::string& model = {});
// The files that make a checkpoint of the weights beside them.
enum class Beside : uint8_t {
  shards,     // and `latest`: people keep the model's own files beside a checkpoint
  optimizer,  // an optimizer's file too (StateKind::training), for who wants its states
};
// True if `path` is not a checkpoint but weights: a file, or a folder with weights and no other
// part of a checkpoint. With a tag it is a checkpoint. Throws InconsistentError that lists them for
// a folder with weights, folders of shards and no `latest`.
bool holds_only_weights(Folders& folders, const std::filesystem::path& path, const std::string& tag,
                        Beside beside);
// The same where a checkpoint is expected: a file must have a name that weights have, and shards
// are not weights.
bool is_weights_input(Folders& folders, const std::filesystem::path& path, const std::string& tag,
                      Beside beside);

// find_tag_folder(), where weights are welcome: a path that is_weights_input() is what has only
// weights (TagFolder::has_only_weights), with `path` to open. Throws UsageError for weights with
// other roots.
TagFolder find_input(const std::filesystem::path& path, const FindOptions& options, Beside beside);

// The `__metadata__` of all `files` of safetensors, of the last file for each key.
std::map<std::string, std::string> metadata_of(const std::vector<WeightsFile>& files);

struct WeightsTensor {
  // The key of a state_dict; where dicts lie in dicts, the keys with dots between them.
  std::string name;
  TensorSource value;
  // The first name of the same view of the same storage, or "".
  std::string alias_of;
};

// Immutable; any thread. The InputFiles table must outlive it.
class Weights {
 public:
  // True if `path` is a regular file, or a folder with weights as open() looks for them.
  static bool probe(Folders& folders, const std::filesystem::path& path);

  struct Options {
    // If true, a file counts by its content. From a whole training only the model is taken, without
    // the key that its state_dict has there; a shard of DeepSpeed holds no weights. If false, every
    // tensor is taken, for callers that look at files.
    bool of_model = false;
    // Chooses one of several models, by the name of its files in a folder or its key in a file.
    std::string model = {};
    bool allow_missing = false;             // go on without files that are missing: missing()
    std::shared_ptr<Folders> folders = {};  // FindOptions::folders
  };

  // Opens a file of torch.save or safetensors with all its tensors, or a folder. A model may be in
  // a folder in several forms. The first is taken of model.safetensors, its .index.json,
  // pytorch_model.bin and its .index.json (transformers' order). The same holds for
  // diffusion_pytorch_model. Files *.safetensors of unknown names are the parts of one model. A
  // file with a number ("-00001-of-00002") means all of them. Throws IoError, the errors of opening
  // the files, and CorruptError for an index that is none. Throws InconsistentError for missing
  // files that an index or other numbers imply (all of them in one message). Throws it also for a
  // shard of DeepSpeed, for tensors that it says are elsewhere, and for names that are in two
  // files. Files whose headers say so have chunks of tensors, which are put together
  // (weights_chunks.h, with its errors).
  static Weights open(InputFiles& inputs, const std::filesystem::path& path,
                      const Options& options);

  const std::vector<WeightsFile>& files() const { return files_; }
  // File by file, in the order of each.
  const std::vector<WeightsTensor>& tensors() const { return tensors_; }
  // Tensors of kinds that are not read: by name, with the kind.
  const std::vector<OpaqueTensor>& unread() const { return unread_; }
  // Files that are not there, with allow_missing, as messages call them.
  const std::vector<std::string>& missing() const { return missing_; }
  // Notes for the user; they are not errors.
  const std::vector<std::string>& notes() const { return notes_; }
  // Only the files, which the tensors' sources do not need.
  std::vector<WeightsFile> take_files() && { return std::move(files_); }

 private:
  std::vector<WeightsFile> files_;
  std::vector<WeightsTensor> tensors_;
  std::vector<OpaqueTensor> unread_;
  std::vector<std::string> missing_;
  std::vector<std::string> notes_;
};

}  // namespace dsckpt
