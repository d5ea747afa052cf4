// Cuts tensors into the chunks of a DCP checkpoint.
//
// A reader (torch/distributed/checkpoint/filesystem.py) reads whole chunks, and every rank reads a
// metadata entry for each chunk. So a chunk is the part that one rank of FSDP2 needs, Shard(0):
// ceil(rows / ranks) rows, by torch.chunk. If there would be too many chunks, or they would be
// smaller than the archive around them, neighbours are joined.
#pragma once

#include <cstdint>
#include <span>

#include "dsckpt/dtype.h"

namespace dsckpt {

// At 60 bytes of the metadata and 4 us of pickle.load each, that is 42 MB and 3 s.
inline constexpr uint64_t kMostChunks = 700'000;
// The archive around a chunk takes 1.5 kB.
inline constexpr uint64_t kLeastChunkBytes = 512;

// A tensor that is cut into rows.
struct CutTensor {
  int64_t rows = 0;
  uint64_t row_bytes = 0;
};

// The rows of each chunk; the last may have fewer. A chunk is made of as few neighbouring shards as
// have `least` bytes, or of all rows. 0 for a tensor without rows.
int64_t rows_of_chunk(const CutTensor& tensor, uint32_t ranks, uint64_t least);

// The smallest `least` with which all `tensors` together have at most `most` chunks.
uint64_t least_chunk_bytes(std::span<const CutTensor> tensors, uint32_t ranks,
                           uint64_t most = kMostChunks);

}  // namespace dsckpt
