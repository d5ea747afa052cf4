// Contents: the named tensors at a path.
#pragma once

#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "checkpoint/checkpoint.h"
#include "checkpoint/weights.h"
#include "dsckpt/error.h"
#include "io/input_file.h"
#include "plan/tensor_source.h"

namespace dsckpt {

struct NamedTensor {
  std::string name;
  // "" for the value itself. For an optimizer state, the optimizer's name of it: "exp_avg".
  std::string state;
  // nullopt if unknown, as in files of weights.
  std::optional<ParamKind> kind;
  TensorSource value;
  // For a tied tensor, and for its states, the name of the owner; else "".
  std::string alias_of;
  // In a damaged checkpoint: the lost files that held its elements (indices of
  // Checkpoint::lost_files()). Then `value` has only its type and shape.
  std::vector<size_t> lost = {};

  // "layers.0.weight", or of a state "layers.0.weight exp_avg".
  std::string label() const { return state.empty() ? name : name + " " + state; }
};

struct ContentsOptions {
  std::string tag;                                // as OpenOptions::tag
  bool states = false;                            // the optimizer's states too
  std::vector<std::filesystem::path> roots = {};  // as OpenOptions::roots
  std::string model = {};                         // as OpenOptions::model
  std::vector<std::string> tp_rules = {};         // as SourceOptions::tp_rules
  // Opens a damaged checkpoint without the files that are missing or cannot be read, and one of
  // torch.distributed.checkpoint without unsupported values.
  bool damaged = false;
  std::shared_ptr<Folders> folders = {};  // as OpenOptions::folders
};

// An open path: a checkpoint in any readable layout, a file of tensors, or a folder of weights.
// Immutable; any thread. The InputFiles table must outlive it.
class Contents {
 public:
  // A folder is a checkpoint if it has `latest`, `latest_universal`, the tag or shards; else
  // weights. Throws as Checkpoint::open and Weights::open.
  static Contents open(InputFiles& inputs, const std::filesystem::path& path,
                       const ContentsOptions& options = {});
  // The contents of a checkpoint that is already open.
  static Contents of(std::shared_ptr<const Checkpoint> checkpoint);

  // The layout of a checkpoint: "zero-2", "universal", ... For weights "torch", "safetensors" or,
  // for a folder with both, "weights".
  const std::string& form() const { return form_; }
  // In the order of Checkpoint::params(), each followed by its states; else in the order of the
  // files.
  const std::vector<NamedTensor>& tensors() const { return tensors_; }
  // nullptr if this is not a checkpoint.
  const Checkpoint* checkpoint() const { return checkpoint_.get(); }
  std::shared_ptr<const Checkpoint> shared_checkpoint() const { return checkpoint_; }
  // All files of torch.save, and all of safetensors. Borrowed.
  const std::vector<CheckpointFile>& archives() const { return archives_; }
  const std::vector<WeightsFile>& weights_files() const;
  const std::vector<std::string>& notes() const;
  // The folder that has the files, or the one file that has everything.
  const std::filesystem::path& own() const { return own_; }
  // Why it is this one, where the path left a choice (TagFolder::note); else "".
  const std::string& choice() const { return choice_; }
  // The error that keeps the checkpoint from being opened as a whole, with a next step as its hint;
  // nullptr if it is whole. Only with ContentsOptions::damaged.
  const Error* damage() const { return damage_ ? &*damage_ : nullptr; }

  // The rank that wrote `file`, one of `inputs`; nullopt if unknown.
  std::optional<ShardName> writer_of(const InputFiles& inputs, FileId file) const;
  // The record (of safetensors, the tensor) that holds byte `offset` of `file`, or "".
  std::string record_at(FileId file, uint64_t offset) const;

 private:
  void index_files();

  std::string form_;
  std::filesystem::path own_;
  std::string choice_;
  std::vector<std::string> notes_;  // on weights
  std::shared_ptr<const Checkpoint> checkpoint_;
  std::unique_ptr<Weights> weights_;
  std::vector<CheckpointFile> archives_;
  std::vector<NamedTensor> tensors_;
  std::optional<Error> damage_;
  std::map<FileId, const TorchArchive*> by_file_;  // of archives_
  std::map<FileId, ShardName> swap_owners_;
};

}  // namespace dsckpt
