// Weights formats: a model's state_dict as files that torch, safetensors and transformers load.
//
// A format says how its files are called and lays one file out; how a state_dict is split over
// several files is the same for all (huggingface_hub's rule). Adding a format is one .cpp and one
// row.
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
  // The entry before this one that it shares its data with, or "".
  std::string alias_of;
};

struct WeightsFormat {
  std::string_view name;        // "safetensors"
  std::string_view stem;        // "model": files are called STEM[-00001-of-00002]EXTENSION
  std::string_view extension;   // ".safetensors"
  std::string_view index_name;  // written when there is more than one file
  // Whether a file can hold one tensor under two names. If not, aliases go into the metadata.
  bool shares_storage;
  // Adds the file `path` with `tensors`, in this order, to the plan. An alias's owner is in the
  // same file. `metadata` goes where the format has a place for it.
  void (*lay_out)(PlanBuilder& plan, std::string path, std::span<const OutputTensor> tensors,
                  const std::map<std::string, std::string>& metadata);
};

// The files one by one, and where each tensor is.
struct WeightsSplit {
  struct File {
    std::string path;
    std::vector<OutputTensor> tensors;
  };
  std::vector<File> files;
  uint64_t total_size = 0;  // bytes of the tensors, shared data once
  // What is said of them: in safetensors files beside "format", and in the index of several files.
  std::map<std::string, std::string> metadata = {};
};

// huggingface_hub split_torch_state_dict_into_shards: fills files in order up to `max_shard_size`
// bytes; a larger tensor gets a file of its own; what shares data follows its owner. With kOneFile
// there is nothing to split.
WeightsSplit split_weights(const WeightsFormat& format, std::vector<OutputTensor> tensors,
                           uint64_t max_shard_size);

// The floating type that most elements have; nullopt if none is of one.
std::optional<DType> type_of_most(std::span<const OutputTensor> tensors);

// Lays out all files, and the index last if there are several.
void lay_out_weights(PlanBuilder& plan, const WeightsFormat& format, const WeightsSplit& split);
// The index alone, if there are several files. It names them relative to its own folder.
void lay_out_index(PlanBuilder& plan, const WeightsFormat& format, const WeightsSplit& split);

// Whether `file_name` is a name that files of weights, of any format, or their indexes have.
bool is_weights_file(std::string_view file_name);

}  // namespace dsckpt
