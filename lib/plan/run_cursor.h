// RunCursor: a way along the runs of a tensor, in steps that are not those of the runs.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "plan/source_run.h"

namespace dsckpt {

// A place between two elements of a list of runs laid end to end. Counts are of elements.
class RunCursor {
 public:
  explicit RunCursor(std::vector<SourceRun> runs) : runs_(std::move(runs)) {}

  bool done() const { return run_ == runs_.size(); }
  // The functions below want a next element.
  DType stored() const { return runs_[run_].stored; }
  // How its operands make it, and what those of same are: none where it lies in one place, also as
  // a column of an interleave.
  Combine combine() const;
  const std::string* what() const { return runs_[run_].what; }

  // To the end of its row, or of a column's part of it. Not where nothing is stored
  // (Combine::zeros).
  uint64_t left_in_row() const;
  // The next `count`, which lie in one row.
  Rows piece(uint64_t count) const;
  // They in all operands of a mean or same, which are in one row; of others piece() alone.
  std::vector<Rows> pieces(uint64_t count) const;

  // How many of the next blocks of `block` lie one as far behind the other as the next: the rows of
  // a run, or parts of one row. None in runs of no source or of several.
  uint64_t even_blocks(uint64_t block) const;
  // They as rows. Only if there are any.
  Rows blocks(uint64_t block) const;

  // At most to the end of the last run.
  void advance(uint64_t count);

 private:
  // Where the next element is: in which rows, in which of them, and how many bytes into that.
  struct Place {
    const Rows* rows;
    uint64_t row;
    uint64_t byte;
  };
  Place place() const;
  // Elements of a row of the run.
  uint64_t row_elements() const;
  bool is_row_by_row(uint64_t block) const;

  std::vector<SourceRun> runs_;
  size_t run_ = 0;
  uint64_t taken_ = 0;  // of the run
};

}  // namespace dsckpt
