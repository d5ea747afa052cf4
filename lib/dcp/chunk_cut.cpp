#include "dcp/chunk_cut.h"

#include <algorithm>

#include "base/bytes.h"

namespace dsckpt {
namespace {

uint64_t chunks_of(std::span<const CutTensor> tensors, uint32_t ranks, uint64_t least) {
  uint64_t sum = 0;
  for (const CutTensor& tensor : tensors) {
    const int64_t rows = rows_of_chunk(tensor, ranks, least);
    sum +=
        rows == 0 ? 1 : div_ceil(static_cast<uint64_t>(tensor.rows), static_cast<uint64_t>(rows));
  }
  return sum;
}

}  // namespace

int64_t rows_of_chunk(const CutTensor& tensor, uint32_t ranks, uint64_t least) {
  const auto rows = static_cast<uint64_t>(tensor.rows);
  const uint64_t of_rank = div_ceil(rows, ranks);
  const uint64_t bytes = of_rank * tensor.row_bytes;
  if (bytes == 0 || bytes >= least) return static_cast<int64_t>(of_rank);
  const uint64_t neighbours = div_ceil(least, bytes);
  if (neighbours >= div_ceil(rows, of_rank)) return tensor.rows;
  return static_cast<int64_t>(of_rank * neighbours);
}

uint64_t least_chunk_bytes(std::span<const CutTensor> tensors, uint32_t ranks, uint64_t most) {
  uint64_t enough = kLeastChunkBytes;  // at most, the whole of the largest tensor
  for (const CutTensor& tensor : tensors) {
    enough = std::max(enough, static_cast<uint64_t>(tensor.rows) * tensor.row_bytes);
  }
  uint64_t low = kLeastChunkBytes;
  while (low < enough) {
    const uint64_t middle = low + (enough - low) / 2;
    if (chunks_of(tensors, ranks, middle) <= most) {
      enough = middle;
    } else {
      low = middle + 1;
    }
  }
  return low;
}

}  // namespace dsckpt
