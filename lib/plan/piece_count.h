// PieceCount: counts the pieces of files in a plan or a part of it.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "dsckpt/error.h"
#include "plan/source_run.h"

namespace dsckpt {

// Many pieces are fine if each has bytes of its own: it is at least an element long then.
class PieceCount {
 public:
  // `most`: the number of pieces allowed whatever bytes they lie in.
  explicit PieceCount(uint64_t most) : most_(most) {}

  // Throws UnsupportedError for more pieces, if they are too many for the bytes that they lie in.
  void add(const SourceRun& run) {
    constexpr uint64_t kLeastPiece = 4;
    for (const Rows& rows : run.sources()) {
      if (rows.file >= reach_.size()) reach_.resize(rows.file + size_t{1});
      uint64_t& reach = reach_[rows.file];
      const uint64_t end = std::max(reach, rows.span(run.rows).end());
      reached_ += end - reach;
      reach = end;
      ++count_;
    }
    if (count_ <= most_ || count_ <= reached_ / kLeastPiece) return;
    throw UnsupportedError({}, "the tensors lie in too many pieces of the same bytes");
  }

 private:
  uint64_t most_;
  uint64_t count_ = 0;
  std::vector<uint64_t> reach_;  // how far each file is read
  uint64_t reached_ = 0;         // the sum
};

}  // namespace dsckpt
