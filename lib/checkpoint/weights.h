// Weights: files of named tensors that are no shards of ZeRO, as torch.save, safetensors and
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

#include "checkpoint/weights_file.h"
#include "format/tensors_in.h"
#include "io/input_file.h"
#include "plan/tensor_source.h"

namespace dsckpt {

// An index of sharded weights, as huggingface_hub writes it.
struct WeightsIndex {
  std::map<std::string, std::string> files;  // tensor name -> file name
  std::optional<uint64_t> total_size;        // metadata.total_size: bytes of all tensors
};

// The files that a folder's weights are in, in the order of Weights::open: one index, or the files
// themselves. Empty if there are none.
std::vector<std::filesystem::path> find_weights(const std::filesystem::path& folder);
bool is_weights_index(const std::filesystem::path& path);
// Whether a file is called as frameworks call their weights, or the index of them.
bool is_weights_name(const std::filesystem::path& path);
// Throws IoError, and CorruptError for what is no index.
WeightsIndex read_weights_index(const std::filesystem::path& path);

// The files that make a checkpoint of the weights beside them.
enum class Beside : uint8_t {
  shards,     // and `latest`: people keep the model's own files beside a checkpoint
  optimizer,  // an optimizer's file too (StateKind::training), for who wants its states
};
// Whether `path` is no checkpoint but weights: a file, or a folder with weights that has nothing
// else of a checkpoint. With a tag it is a checkpoint.
bool holds_only_weights(const std::filesystem::path& path, const std::string& tag, Beside beside);
// The same where a checkpoint is expected: a file has to have a name as weights have it, and shards
// are none.
bool is_weights_input(const std::filesystem::path& path, const std::string& tag, Beside beside);

// Files of `paths` that others of them name and that are not stored: of "model-00001-of-00003.x"
// those of the other numbers, in the same folder. By path.
std::vector<std::filesystem::path> missing_siblings(
    const std::vector<std::filesystem::path>& paths);

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
  static bool probe(const std::filesystem::path& path);

  struct Options {
    // What is in a file counts by its content: of a whole training the model alone, without the key
    // that its state_dict has there; a shard of DeepSpeed is none. Else every tensor is taken, for
    // who looks at files.
    bool of_model = false;
    std::string model = {};      // of several models in a file the key of one
    bool allow_missing = false;  // go on without files that are missing: missing()
  };

  // Opens a file of torch.save or safetensors with whatever tensors it has, or a folder: with the
  // first there is of model.safetensors, its .index.json, pytorch_model.bin and its .index.json
  // (transformers' order), the same of adapter_model and diffusion_pytorch_model, or else one
  // *.index.json, or else all its *.safetensors, or else all *.bin of a number. A file of a number
  // ("-00001-of-00002") means all of them. Throws IoError; what opening the files throws;
  // CorruptError for an index that is none; InconsistentError for files that an index or the number
  // of others names and that are not there (all of them in one message), for a shard of DeepSpeed,
  // for tensors that it says are elsewhere, and for names that are in two files. Files whose
  // headers say so have chunks of tensors, which are put together (weights_chunks.h, with what it
  // throws).
  static Weights open(InputFiles& inputs, const std::filesystem::path& path,
                      const Options& options);

  const std::vector<WeightsFile>& files() const { return files_; }
  // File by file, in the order of each.
  const std::vector<WeightsTensor>& tensors() const { return tensors_; }
  // Tensors of kinds that are not read: by name, with the kind.
  const std::vector<OpaqueTensor>& unread() const { return unread_; }
  // Files that are not there, with allow_missing, as messages call them.
  const std::vector<std::string>& missing() const { return missing_; }
  // Things a user should know that are no errors.
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
