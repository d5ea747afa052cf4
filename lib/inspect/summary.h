// The contents of a path in numbers.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "inspect/byte_kinds.h"
#include "inspect/contents.h"
#include "inspect/grid.h"
#include "inspect/memory_estimate.h"
#include "io/input_file.h"

namespace dsckpt {

struct TensorCount {
  uint64_t tensors = 0;
  int64_t elements = 0;
};

// The sizes of one rank's files: those with its number in their names. Model files at stages 0 to 2
// belong to data-parallel rank 0.
struct RankShare {
  uint32_t dp = 0;
  uint32_t mp = 0;
  uint64_t bytes = 0;
  std::vector<BytesOfKind> kinds;
};

struct Summary {
  // "bfloat16": the type or types of the model's parameters; "" if unknown.
  std::string precision;
  // The optimizer in the saved configuration, else the one that its states suggest ("Adam (by its
  // states)"); "" if unknown.
  std::string optimizer;
  // By kind of parameter ("trainable", "frozen", "buffer"; "tensor" if unknown), without tied ones.
  std::map<std::string, TensorCount> counts;
  uint64_t tied = 0;  // names that are other names' tensors
  // The most parameters that one module has, without those of its children. DeepSpeed's estimates
  // call it the largest layer.
  int64_t largest_layer = 0;
  uint64_t files = 0;
  uint64_t bytes = 0;
  uint64_t stored = 0;  // on the disk
  std::vector<BytesOfKind> kinds;
  // By mp rank, then dp rank; empty if the files have no ranks.
  std::vector<RankShare> ranks;
  std::vector<GridRank> grid;  // grid_of(checkpoint)
  // Files of the tag's folder other than the shards that were read, with their sizes.
  std::vector<std::pair<std::string, uint64_t>> other_files;

  int64_t parameters() const;  // trainable and frozen; where nothing tells, all
};

// Summarizes `contents`, which is open with its states. Throws the errors of reading the archives'
// headers.
Summary summarize(const InputFiles& inputs, const Contents& contents);

}  // namespace dsckpt
