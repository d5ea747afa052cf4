// The pipeline stages and tensor-parallel ranks of a split model, with their parts of it.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "checkpoint/checkpoint.h"

namespace dsckpt {

struct GridRank {
  uint32_t stage = 0;
  uint32_t tp_rank = 0;
  uint64_t params = 0;   // that its optimizer has
  int64_t elements = 0;  // of them
  // "0 to 3, tied embed"; "" if it is not a pipeline.
  std::string layers;
};

// By stage, then tensor-parallel rank. Empty for a model that is not split so. Empty also if the
// files of a rank are lost, or not read by themselves (Checkpoint::world).
std::vector<GridRank> grid_of(const Checkpoint& checkpoint);

}  // namespace dsckpt
