// Contents: whatever a path holds, as named tensors.
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
  // "" of the value itself; of what the optimizer keeps of each of its elements, the optimizer's
  // name of that: "exp_avg".
  std::string state;
  // nullopt where nothing tells: in files of weights.
  std::optional<ParamKind> kind;
  TensorSource value;
  // For a tied tensor, and for its states, the name it is the same tensor as; else "".
  std::string alias_of;
  // Of a damaged checkpoint, the files it has elements in that are lost (indices of
  // Checkpoint::lost_files()). `value` has its type and shape, and lies nowhere.
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
  // A checkpoint that is damaged is opened without the files that are missing or cannot be read;
  // one of torch.distributed.checkpoint without the values that are not supported.
  bool damaged = false;
};

// For --root with weights.
UsageError no_roots_of_weights(const std::filesystem::path& path);

// A path, opened: a checkpoint in any layout there is a reader for, a file of tensors, or a folder
// of weights. Immutable; any thread. The InputFiles table must outlive it.
class Contents {
 public:
  // A folder is a checkpoint if it has `latest`, `latest_universal`, the tag or shards; else
  // weights. Throws as Checkpoint::open and Weights::open.
  static Contents open(InputFiles& inputs, const std::filesystem::path& path,
                       const ContentsOptions& options = {});
  // Those of a checkpoint that was opened already.
  static Contents of(std::shared_ptr<const Checkpoint> checkpoint);

  // "zero-2", "universal", ...: the layout of a checkpoint; "torch", "safetensors" or, of a folder
  // with both, "weights".
  const std::string& form() const { return form_; }
  // In the order of Checkpoint::params(), each one followed by its states, or of the files.
  const std::vector<NamedTensor>& tensors() const { return tensors_; }
  // nullptr if this is no checkpoint.
  const Checkpoint* checkpoint() const { return checkpoint_.get(); }
  std::shared_ptr<const Checkpoint> shared_checkpoint() const { return checkpoint_; }
  // All files of torch.save, and all of safetensors. Borrowed.
  const std::vector<CheckpointFile>& archives() const { return archives_; }
  const std::vector<WeightsFile>& weights_files() const;
  const std::vector<std::string>& notes() const;
  // Why the checkpoint cannot be opened as a whole, with what to do next as its hint; nullptr if it
  // can. Only with ContentsOptions::damaged.
  const Error* damage() const { return damage_ ? &*damage_ : nullptr; }

  // The rank that wrote `file`, one of `inputs`; nullopt where nothing tells.
  std::optional<ShardName> writer_of(const InputFiles& inputs, FileId file) const;
  // The record (of safetensors, the tensor) that holds byte `offset` of `file`, or "".
  std::string record_at(FileId file, uint64_t offset) const;

 private:
  void index_files();

  std::string form_;
  std::shared_ptr<const Checkpoint> checkpoint_;
  std::unique_ptr<Weights> weights_;
  std::vector<CheckpointFile> archives_;
  std::vector<NamedTensor> tensors_;
  std::optional<Error> damage_;
  std::map<FileId, const TorchArchive*> by_file_;  // of archives_
  std::map<FileId, ShardName> swap_owners_;
};

}  // namespace dsckpt
