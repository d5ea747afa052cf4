// SourceRun: the form that a lazy tensor is lowered to.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/dtype_names.h"
#include "plan/rows.h"

namespace dsckpt {

struct LowRankUpdate;

// The way that bytes of several places make one result.
enum class Combine : uint8_t {
  none,        // there is one place only
  mean,        // the mean of their float32 elements, see TensorSource::mean
  same,        // they are equal
  interleave,  // each row is a row of the first, then one of the second, ...
  zeros,       // there is no place: they are zero
  weighted,    // the weighted mean of their elements or their sum, see TensorSource::weighted_mean
  low_rank,    // elements of a merged weight, see TensorSource::low_rank_update
};

// One of the tensors in a weighted mean, in a run.
struct WeightedTerm {
  double weight = 1;
  double share = 1;               // its part of the divisor: its weight, or 1 or 0 for a plain sum
  DType stored = DType::float32;  // float32, bfloat16 or float16
  Combine combine = Combine::none;    // none, mean or same: how its own operands make one value
  uint32_t operands = 1;              // how many of the run's are its own
  const std::string* what = nullptr;  // of same
};

// `rows` equally long rows of bytes that follow each other in the result. lower() emits them.
struct SourceRun {
  // For none: the rows in the file. For other operations only the length of a row has a meaning.
  Rows source;
  uint64_t rows = 1;
  DType stored = DType::uint8;  // element type in the file
  DType result = DType::uint8;  // element type asked for
  Combine combine = Combine::none;
  // The places of operations other than none.
  // * Mean and same have single rows, as long as the run's; the run has one row.
  // * Interleave has its two or more columns, with as many rows as the run. Their row lengths add
  //   up to the run's.
  // * Zeros has none and one row; its stored type is the result type.
  // * Weighted has single rows, term by term, of as many elements as the run's; the run has one
  //   row. Its stored type is float64, the type of the mean before it is rounded.
  // * A low_rank has none. The run is as many elements of `update`, counted as if all were float64,
  //   from source.offset on.
  std::vector<Rows> operands = {};
  std::vector<WeightedTerm> terms = {};  // of weighted
  const std::string* what = nullptr;     // of same: what its operands are; the TensorSource's own
  std::shared_ptr<const LowRankUpdate> update = {};  // of low_rank

  // All rows that it reads, in order; for none those of `source`.
  std::span<const Rows> sources() const {
    return combine == Combine::none ? std::span(&source, 1) : std::span(operands);
  }
  uint64_t numel() const { return rows * (source.row_bytes / size_of(stored)); }
  uint64_t result_bytes() const { return numel() * size_of(result); }
};

}  // namespace dsckpt
