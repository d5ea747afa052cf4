// How tensor-parallel ranks share a parameter, so that another number of ranks can share it alike.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "dsckpt/dtype.h"
#include "plan/tensor_source.h"

namespace dsckpt {

// Consecutive rows of a parameter (along the dimension of the cut), and their share on each rank.
struct TpPart {
  std::vector<int64_t> widths;  // by rank, in the order of the rows
  bool on_every_rank = false;   // each has all rows; then all `widths` are their number
  // The rows of a unit that ranks do not divide, such as a head. 0: as the widths tell.
  int64_t unit = 0;

  int64_t rows() const;
  // The widths on `ranks` ranks, as TpCut::for_ranks() says.
  std::vector<int64_t> shares_of(uint32_t ranks) const;
};

// Immutable; any thread.
class TpCut {
 public:
  // Every rank has the whole parameter.
  static TpCut whole() { return TpCut(Kind::whole); }
  // The same, but the ranks' copies differ, and the parameter is their mean.
  static TpCut mean() { return TpCut(Kind::mean); }
  // The parameter is the sum of the ranks' parts.
  static TpCut sum() { return TpCut(Kind::sum); }
  // A rank's slice has its share of each part, in their order, along dimension `dim`. There is at
  // least one part, and all parts are for the same number of ranks. The slices have `dims`
  // dimensions. They are vectors if the parameter has more.
  TpCut(size_t dim, size_t dims, std::vector<TpPart> parts)
      : dim_(dim), dims_(dims), parts_(std::move(parts)) {}

  bool is_whole() const { return kind_ == Kind::whole || kind_ == Kind::mean; }
  // True if the parameter's elements are those of the slices, and join() finds them.
  bool joins() const { return kind_ == Kind::whole || kind_ == Kind::parts; }
  size_t dim() const { return dim_; }
  size_t dims() const { return dims_; }
  const std::vector<TpPart>& parts() const { return parts_; }  // none for whole(), mean(), sum()

  // True if the shares of fewer or more ranks would not tell this cut: they differ now, or all
  // ranks have some rows.
  bool is_uneven() const;
  // True if `other` has the same parts of as many rows.
  bool has_rows_of(const TpCut& other) const;

  // The same cut for another number of ranks. Shares are multiples of the part's unit. Without one,
  // shares that are equal stay equal; the unit of others is the difference between the largest and
  // the smallest. The first ranks have one unit more. Throws UsageError for rows that such ranks
  // cannot share, and for a sum.
  TpCut for_ranks(uint32_t ranks) const;
  // The same cut of a parameter that has `rows` rows instead, all in one part of equal shares.
  // Throws UsageError for rows that the ranks cannot share.
  TpCut with_rows(int64_t rows, uint32_t ranks) const;

  // The parameter, or what has its shape, of the slices of all ranks. Only if joins().
  TensorSource join(const std::vector<TensorSource>& slices, const Shape& shape) const;
  // The slice that rank `rank` has of `all`, the parameter or one of its states. The copies of what
  // every rank has are compared (TensorSource::same) by rank 0 only.
  TensorSource slice(const TensorSource& all, uint32_t rank) const;

 private:
  enum class Kind : uint8_t { parts, whole, mean, sum };
  explicit TpCut(Kind kind) : kind_(kind) {}

  Kind kind_ = Kind::parts;
  size_t dim_ = 0;
  size_t dims_ = 0;
  std::vector<TpPart> parts_;
};

}  // namespace dsckpt
