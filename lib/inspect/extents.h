// The places of a tensor's bytes.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "deepspeed/shard_name.h"
#include "inspect/contents.h"
#include "io/input_file.h"
#include "plan/tensor_source.h"

namespace dsckpt {

// `rows` equally long pieces of one file. Row i has the bytes [offset + i * stride, + row_bytes) of
// the file and the elements [first + i * step, + row_elements) of the tensor, counted row-major.
struct TensorExtent {
  FileId file = 0;
  std::string record;  // of the zip, "archive/data/7"; of safetensors the tensor; or ""
  uint64_t offset = 0;
  uint64_t row_bytes = 0;
  uint64_t rows = 1;
  int64_t stride = 0;  // bytes; 0 if there is one row
  int64_t first = 0;
  int64_t row_elements = 0;
  int64_t step = 0;  // elements; 0 if there is one row
  DType stored = DType::uint8;
  // For elements in several places: 0 for the first place, 1 for the next, ... All places hold
  // equal values; or `mean` is set, and the value is the mean of all.
  uint32_t copy = 0;
  bool mean = false;
  // The rank that wrote the file; nullopt if unknown.
  std::optional<ShardName> rank;

  uint64_t bytes() const { return rows * row_bytes; }
};

// In the order of the elements. Elements that lie in no file (zeros that were never stored) have no
// extent.
std::vector<TensorExtent> extents_of(const InputFiles& inputs, const Contents& contents,
                                     const TensorSource& tensor);

// The files that hold any part of the tensor, by number.
std::vector<FileId> files_with(const TensorSource& tensor);
// The ranks that wrote `files`, by mp rank and then dp rank. Files whose names do not tell are
// skipped.
std::vector<ShardName> ranks_of(const InputFiles& inputs, const Contents& contents,
                                const std::vector<FileId>& files);

// The tensor called `name`, or its state `state` (NamedTensor::state) if that is not empty. Throws
// UsageError with the most similar name if there is none.
const NamedTensor& tensor_named(const Contents& contents, const std::string& name,
                                const std::string& state);

}  // namespace dsckpt
