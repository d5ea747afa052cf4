#include "checkpoint/tp_cut.h"

#include <algorithm>
#include <numeric>
#include <string>
#include <utility>

#include "base/text.h"
#include "dsckpt/error.h"

namespace dsckpt {
namespace {

std::vector<int64_t> even_shares(int64_t rows, uint32_t ranks) {
  if (rows % ranks != 0) {
    throw UsageError("a size of " + std::to_string(rows) + " cannot be divided evenly over " +
                     counted(ranks, "tensor-parallel rank"));
  }
  return std::vector<int64_t>(ranks, rows / ranks);
}

// The first ranks have one unit more: tp_shard.py get_shard_size.
std::vector<int64_t> shares_in_units(int64_t units, int64_t unit, size_t ranks) {
  const auto degree = static_cast<int64_t>(ranks);
  std::vector<int64_t> shares;
  for (int64_t rank = 0; rank < degree; ++rank) {
    shares.push_back(unit * (units / degree + (rank < units % degree ? 1 : 0)));
  }
  return shares;
}

}  // namespace

int64_t TpPart::rows() const {
  if (on_every_rank) return widths.front();
  return std::accumulate(widths.begin(), widths.end(), int64_t{0});
}

std::vector<int64_t> TpPart::shares_of(uint32_t ranks) const {
  if (on_every_rank) return std::vector<int64_t>(ranks, rows());
  if (widths.size() == ranks) return widths;
  if (ranks == 1) return {rows()};
  const auto [least, most] = std::minmax_element(widths.begin(), widths.end());
  const int64_t size = unit > 0 ? unit : *most - *least;
  if (size == 0) return even_shares(rows(), ranks);
  const int64_t units = rows() / size;
  if (rows() % size != 0 || shares_in_units(units, size, widths.size()) != widths) {
    throw UsageError((unit > 0 ? "its slices are not made of units of size "
                               : "no unit makes its slices, which differ by ") +
                     std::to_string(size));
  }
  if (units < ranks) {
    throw UsageError(counted(ranks, "tensor-parallel rank") + " cannot share its " +
                     counted(units, "unit") + " of size " + std::to_string(size) +
                     ", such as heads, which are not divided");
  }
  return shares_in_units(units, size, ranks);
}

bool TpCut::is_uneven() const {
  return std::any_of(parts_.begin(), parts_.end(), [](const TpPart& part) {
    return part.on_every_rank ||
           std::any_of(part.widths.begin(), part.widths.end(),
                       [&](int64_t width) { return width != part.widths.front(); });
  });
}

bool TpCut::has_rows_of(const TpCut& other) const {
  return kind_ == other.kind_ && dim_ == other.dim_ &&
         std::equal(parts_.begin(), parts_.end(), other.parts_.begin(), other.parts_.end(),
                    [](const TpPart& a, const TpPart& b) { return a.rows() == b.rows(); });
}

TpCut TpCut::for_ranks(uint32_t ranks) const {
  if (kind_ == Kind::sum && ranks > 1) {
    throw UsageError(
        "is a sum of the tensor-parallel ranks' parts, which can be divided in any way");
  }
  if (kind_ == Kind::sum) return whole();
  if (kind_ != Kind::parts) return *this;
  TpCut cut(dim_, dims_, {});
  for (const TpPart& part : parts_) {
    cut.parts_.push_back({part.shares_of(ranks), part.on_every_rank, part.unit});
  }
  return cut;
}

TpCut TpCut::with_rows(int64_t rows, uint32_t ranks) const {
  return TpCut(dim_, dims_, {{.widths = even_shares(rows, ranks)}});
}

TensorSource TpCut::join(const std::vector<TensorSource>& slices, const Shape& shape) const {
  if (kind_ != Kind::parts) return slices.front();
  std::vector<TensorSource> views;
  for (size_t rank = 0; rank < slices.size(); ++rank) {
    Shape view = shape;
    view[dim_] = 0;
    for (const TpPart& part : parts_) view[dim_] += part.widths[rank];
    views.push_back(slices[rank].shape() == view ? slices[rank] : slices[rank].view(view));
  }
  std::vector<int64_t> reached(slices.size(), 0);
  std::vector<TensorSource> shares;
  for (const TpPart& part : parts_) {
    for (size_t rank = 0; rank < slices.size(); ++rank) {
      const int64_t width = part.widths[rank];
      if (width > 0 && (rank == 0 || !part.on_every_rank)) {
        shares.push_back(
            width == views[rank].shape()[dim_]
                ? views[rank]
                : views[rank].narrow(static_cast<int64_t>(dim_), reached[rank], width));
      }
      reached[rank] += width;
    }
  }
  if (shares.empty()) return views.front();
  return shares.size() == 1 ? shares.front()
                            : TensorSource::cat(static_cast<int64_t>(dim_), std::move(shares));
}

TensorSource TpCut::slice(const TensorSource& all, uint32_t rank) const {
  const auto shared = [&] { return rank == 0 ? all : all.one_copy(); };
  if (kind_ != Kind::parts) return shared();
  std::vector<TensorSource> shares;
  int64_t begin = 0;
  for (const TpPart& part : parts_) {
    const int64_t before =
        part.on_every_rank
            ? 0
            : std::accumulate(part.widths.begin(), part.widths.begin() + rank, int64_t{0});
    const int64_t width = part.widths[rank];
    if (width > 0) {
      const TensorSource from = part.on_every_rank ? shared() : all;
      shares.push_back(width == from.shape()[dim_]
                           ? from
                           : from.narrow(static_cast<int64_t>(dim_), begin + before, width));
    }
    begin += part.rows();
  }
  if (shares.empty()) shares.push_back(all.narrow(static_cast<int64_t>(dim_), 0, 0));
  TensorSource slice = shares.size() == 1
                           ? shares.front()
                           : TensorSource::cat(static_cast<int64_t>(dim_), std::move(shares));
  return slice.shape().size() == dims_ ? slice : slice.flatten();
}

}  // namespace dsckpt
