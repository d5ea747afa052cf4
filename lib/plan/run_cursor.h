// RunCursor: walks along the runs of a tensor, in steps of any length.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "plan/source_run.h"

namespace dsckpt {

// A place between two elements of a list of runs laid end to end. It counts elements.
class RunCursor {
 public:
  explicit RunCursor(std::vector<SourceRun> runs) : runs_(std::move(runs)) {}

  bool done() const { return run_ == runs_.size(); }
  // The functions below need a next element.
  DType stored() const { return runs_[run_].stored; }
  // The operation that makes the next element of its operands, and the text of a same. It is none
  // if the element lies in one place, even in a column of an interleave.
  Combine combine() const;
  const std::string* what() const { return runs_[run_].what; }

  // Elements to the end of the row, or of the column's part of it. Not for runs that are not stored
  // (Combine::zeros).
  uint64_t left_in_row() const;
  // The next `count` elements, which lie in one row.
  Rows piece(uint64_t count) const;
  // These elements in all operands of a mean or same, which are in one row. For other runs only
  // piece().
  std::vector<Rows> pieces(uint64_t count) const;

  // The number of next blocks of `block` elements that lie at equal distances: the rows of a run,
  // or parts of one row. It is 0 in runs with several sources or none.
  uint64_t even_blocks(uint64_t block) const;
  // These blocks as rows. Only if there are any.
  Rows blocks(uint64_t block) const;

  // Moves forward, at most to the end of the last run.
  void advance(uint64_t count);

 private:
  // The place of the next element: which rows, which row of them, and how many bytes into it.
  struct Place {
    const Rows* rows;
    uint64_t row;
    uint64_t byte;
  };
  Place place() const;
  // The elements in a row of the run.
  uint64_t row_elements() const;
  bool is_row_by_row(uint64_t block) const;

  std::vector<SourceRun> runs_;
  size_t run_ = 0;
  uint64_t taken_ = 0;  // of the run
};

}  // namespace dsckpt
