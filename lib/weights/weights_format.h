// Weights formats: a model's state_dict as files that torch, safetensors and transformers load.
//
// A format names its files and lays one file out. All formats split a state_dict over several files
// in the same way (huggingface_hub's rule). A new format needs one .cpp and one row.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "dsckpt/weights.h"
#include "plan/copy_plan.h"
#include "plan/tensor_source.h"

namespace dsckpt {

// An entry of the state_dict that is written.
struct OutputTensor {
  std::string name;
  TensorSource source;
  // The earlier entry whose data it shares, or "".
  std::string alias_of;
};

struct WeightsFormat {
  std::string_view name;        // "safetensors"
  std::string_view stem;        // "model": files are called STEM[-00001-of-00002]EXTENSION
  std::string_view extension;   // ".safetensors"
  std::string_view index_name;  // written when there is more than one file
  // True if a file can hold one tensor under two names. If not, aliases go into the metadata.
  bool shares_storage;
  // Adds the file `path` with `tensors`, in this order, to the plan. An alias's owner is in the
  // same file. `metadata` goes where the format has a place for it.
  void (*lay_out)(PlanBuilder& plan, std::string path, std::span<const OutputTensor> tensors,
                  const std::map<std::string, std::string>& metadata);
};

// The files one by one, and the place of each tensor.
struct WeightsSplit {
  struct File {
    std::string path;
    std::vector<OutputTensor> tensors;
  };
  std::vector<File> files;
  uint64_t total_size = 0;  // bytes of the tensors, shared data once
  // Metadata: in safetensors files beside "format", and in the index of several files.
  std::map<std::string, std::string> metadata = {};
};

// huggingface_hub split_torch_state_dict_into_shards. Fills files in order up to `max_shard_size`
// bytes. A larger tensor gets a file of its own; shared data follows its owner. With kOneFile
// nothing is split.
WeightsSplit split_weights(const WeightsFormat& format, std::vector<OutputTensor> tensors,
                           uint64_t max_shard_size);

// The floating type of most elements; nullopt if no element has one.
std::optional<DType> type_of_most(std::span<const OutputTensor> tensors);

// Lays out all files, and the index last if there are several.
void lay_out_weights(PlanBuilder& plan, const WeightsFormat& format, const WeightsSplit& split);
// The index alone, if there are several files. It names them relative to its own folder.
void lay_out_index(PlanBuilder& plan, const WeightsFormat& format, const WeightsSplit& split);

// True if `file_name` is a name of weights files of any format, or of their indexes.
bool is_weights_file(std::string_view file_name);

}  // namespace dsckpt
