// PieceCount: how many pieces of files a plan, or a part of it, is made of.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "dsckpt/error.h"
#include "plan/source_run.h"

namespace dsckpt {

// Many pieces are right where they have bytes of their own, and are an element long at least then.
class PieceCount {
 public:
  // `most`: so many may lie in whatever bytes they like.
  explicit PieceCount(uint64_t most) : most_(most) {}

  // Throws UnsupportedError if there are more, and too many for the bytes that they lie in.
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
