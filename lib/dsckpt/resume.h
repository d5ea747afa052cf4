// Resume: a rank of a running DeepSpeed engine loads its part of any checkpoint, without files.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "dsckpt/checkpoint.h"
#include "dsckpt/dtype.h"
#include "dsckpt/export.h"
#include "dsckpt/run.h"
#include "dsckpt/tensor.h"

namespace dsckpt {

// An entry of the model's state_dict, as a running engine has it.
struct EngineTensor {
  std::string name;
  ParamKind kind = ParamKind::trainable;
  DType dtype = DType::float32;
  Shape shape;           // of the whole tensor
  std::string alias_of;  // of a tied parameter, the entry that it is the same tensor as; else ""
  // How many expert-parallel ranks have other experts under its name. 0: it is not an expert's.
  uint32_t ep = 0;
};

// A running engine of DeepSpeed, on one of its mp ranks.
struct EngineFacts {
  uint32_t dp = 1;                    // data-parallel ranks, up to kMaxRanks
  std::vector<uint32_t> stages = {};  // the first layer of each; empty: the model is not a pipeline
  uint32_t tp = 1;                    // tensor-parallel ranks
  uint32_t mp_rank = 0;               // whose stage and slices `tensors` are of
  int stage = 0;                      // of ZeRO
  std::string wrapper = {};           // the class around its optimizer; "" of none
  std::string precision = "fp32";     // or "fp16", "bf16": which of DeepSpeed's is on
  std::string ds_version = {};
  std::string ds_config = {};  // JSON, an object
  bool round_robin = false;    // stages 1 and 2: whether it has ordered the groups so
  bool parameter_alignment = false;
  uint64_t sub_group_size = 0;  // stage 3, elements
  std::vector<EngineTensor> tensors = {};
  // The names of the trained parameters of each group, in the order that the optimizer got them.
  std::vector<std::vector<std::string>> groups = {};
  // A pickle of a list with a dict of hyper-parameters for each group. For groups that the
  // checkpoint does not have.
  std::string settings = {};
  // A pickle of the rules by which its model's slices go together, universal_checkpoint_info of
  // DeepSpeed. They cut what is whole in a checkpoint. Empty: it has none.
  std::string universal_info = {};
  // True: engine and checkpoint must have the same names. False: frozen parameters and buffers may
  // be missing on one side.
  bool strict = true;
};

// A file as DeepSpeed would read it, without the elements of its tensors.
struct ResumeFile {
  struct Storage {
    DType dtype = DType::float32;
    int64_t numel = 0;
  };
  std::string pickle;             // data.pkl of torch.save
  std::vector<Storage> storages;  // by the keys in the pickle: "0", "1", ...
};

// Elements [first, first + count) of a storage, and the memory to read them into.
struct StorageRead {
  size_t file = 0;
  size_t storage = 0;
  int64_t first = 0;
  int64_t count = 0;
  std::span<std::byte> out = {};
};

// The files that one rank loads. Cheap to copy. Any thread; gather() does one call at a time.
//
// A run has model states, and from stage 1 on optimizer states, as plan_reshard() would have them
// written. `module` of the former also has what would be written to files of layers and of single
// experts, if the rank loads it. Weights have their state_dict.
class DSCKPT_EXPORT ResumePlan {
 public:
  const std::vector<ResumeFile>& files() const;
  bool is_of_weights() const;
  // Notes for the user, to be read before loading.
  const std::vector<std::string>& notes() const;
  // True if the 16-bit trained parameters in the model-states file can be made of the masters, by
  // rounding.
  bool weights_are_masters() const;
  // The folder of the shards.
  const std::string& folder() const;
  // Opens the files that gather() of the same storages will read. Throws IoError if one is not
  // there, or is not the file that was planned.
  void open_files(std::span<const StorageRead> reads) const;
  // Gathers the elements of all `reads`, on all cores. Checks the CRC32 of records that are read
  // whole; with `check`, of every record that any element lies in. Throws as Source::gather().
  void gather(std::span<const StorageRead> reads, bool check, Progress& progress) const;

  // The plan for another process, and what that one makes of it. It opens only the files that it
  // gathers from, and they have to be the same there. encode() reads the tensors of one element,
  // and throws as gather(); decode() throws CorruptError for other bytes.
  std::string encode() const;
  static ResumePlan decode(std::string_view bytes);
  // The buckets and web servers that it reads, "s3://bucket". The process that decodes it
  // has to open them.
  std::set<std::string> sites() const;

  // Internal to the library.
  struct Impl;
  explicit ResumePlan(std::shared_ptr<const Impl> impl) : impl_(std::move(impl)) {}

 private:
  std::shared_ptr<const Impl> impl_;
};

// The plans of an engine's ranks. Cheap to copy; any thread.
class DSCKPT_EXPORT ResumePlans {
 public:
  // The source must be open with SourceOptions::optimizer_states. Parameters and groups are matched
  // by their names. Throws as plan_reshard().
  ResumePlans(const Source& source, const EngineFacts& engine);
  // `rank` is data-parallel. Throws as plan_reshard().
  ResumePlan of_rank(uint32_t rank) const;

 private:
  struct Impl;
  std::shared_ptr<const Impl> impl_;
};

// The plan of all data-parallel ranks for weights (SourceFacts::from_weights). Throws
// UnsupportedError for an engine with experts, and for a parameter that no rule cuts for its ranks.
DSCKPT_EXPORT ResumePlan plan_weights_alone(const Source& source, const EngineFacts& engine);

}  // namespace dsckpt
