// What a path holds, in numbers.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "inspect/byte_kinds.h"
#include "inspect/contents.h"
#include "inspect/memory_estimate.h"
#include "io/input_file.h"

namespace dsckpt {

struct TensorCount {
  uint64_t tensors = 0;
  int64_t elements = 0;
};

// What one rank's files take: those that have its number in their names. Files of the model at
// stages 0 to 2 are data-parallel rank 0's.
struct RankShare {
  uint32_t dp = 0;
  uint32_t mp = 0;
  uint64_t bytes = 0;
  std::vector<BytesOfKind> kinds;
};

struct Summary {
  // "bfloat16": the type of the model's parameters, or several; "" where nothing tells.
  std::string precision;
  // The optimizer that the saved configuration names, or else what its states tell
  // ("Adam (by its states)"); "" where nothing tells.
  std::string optimizer;
  // By kind of parameter ("trainable", "frozen", "buffer"; "tensor" where nothing tells), without
  // tied ones.
  std::map<std::string, TensorCount> counts;
  uint64_t tied = 0;  // names that are other names' tensors
  // Parameters of the module with the most of its own, without its children: what DeepSpeed's
  // estimates call the largest layer.
  int64_t largest_layer = 0;
  uint64_t files = 0;
  uint64_t bytes = 0;
  uint64_t stored = 0;  // on the disk
  std::vector<BytesOfKind> kinds;
  // By mp rank, then dp rank; empty if the files have no ranks.
  std::vector<RankShare> ranks;
  // Files of the tag's folder that are no shards that were read, with their sizes.
  std::vector<std::pair<std::string, uint64_t>> other_files;

  int64_t parameters() const;  // trainable and frozen; where nothing tells, all
};

// Of `contents`, which is open with its states. Throws what reading the archives' headers throws.
Summary summarize(const InputFiles& inputs, const Contents& contents);

}  // namespace dsckpt
