#include "plan/run_cursor.h"

#include <algorithm>

namespace dsckpt {

uint64_t RunCursor::row_elements() const {
  return runs_[run_].source.row_bytes / size_of(stored());
}

RunCursor::Place RunCursor::place() const {
  uint64_t byte = taken_ % row_elements() * size_of(stored());
  const Rows* rows = runs_[run_].sources().data();
  for (; byte >= rows->row_bytes; ++rows) byte -= rows->row_bytes;
  return {rows, taken_ / row_elements(), byte};
}

uint64_t RunCursor::left_in_row() const {
  const Place at = place();
  return (at.rows->row_bytes - at.byte) / size_of(stored());
}

Rows RunCursor::piece(uint64_t count) const {
  const Place at = place();
  return {at.rows->file, at.rows->begin_of(at.row) + at.byte, count * size_of(stored())};
}

Combine RunCursor::combine() const {
  const Combine how = runs_[run_].combine;
  return how == Combine::interleave ? Combine::none : how;
}

std::vector<Rows> RunCursor::pieces(uint64_t count) const {
  if (combine() == Combine::none) return {piece(count)};
  std::vector<Rows> pieces;
  const uint64_t size = size_of(stored());
  for (const Rows& operand : runs_[run_].operands) {
    pieces.push_back({operand.file, operand.offset + taken_ * size, count * size});
  }
  return pieces;
}

// Returns whether each block is one row of the current run.
bool RunCursor::is_row_by_row(uint64_t block) const {
  return runs_[run_].rows > 1 && row_elements() == block;
}

uint64_t RunCursor::even_blocks(uint64_t block) const {
  const SourceRun& run = runs_[run_];
  if (run.combine != Combine::none) return 0;
  const uint64_t in_row = taken_ % row_elements();
  if (!is_row_by_row(block)) return (row_elements() - in_row) / block;
  return in_row == 0 ? run.rows - taken_ / row_elements() : 0;
}

Rows RunCursor::blocks(uint64_t block) const {
  Rows rows = piece(block);
  rows.stride =
      is_row_by_row(block) ? runs_[run_].source.stride : static_cast<int64_t>(rows.row_bytes);
  return rows;
}

void RunCursor::advance(uint64_t count) {
  while (count > 0) {
    const uint64_t left = runs_[run_].numel() - taken_;
    const uint64_t step = std::min(count, left);
    count -= step;
    taken_ += step;
    if (step < left) return;
    taken_ = 0;
    ++run_;
  }
}

}  // namespace dsckpt
