// TensorSource: a tensor that is described, not read.
//
// A lazy expression over byte extents of the input files. Its verbs are torch's verbs, so a reader
// of a ZeRO layout can be compared with the Python that it follows. It does no I/O: lower() turns
// the expression into the copies of a plan.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/dtype_names.h"
#include "base/extent.h"
#include "plan/rows.h"
#include "plan/source_run.h"

namespace dsckpt {

struct LowRankUpdate;

// A tensor that lies in one file as torch's as_strided sees it.
struct StridedView {
  Extent extent;  // from the first to the last byte any element occupies
  DType dtype;
  Shape shape;
  Strides strides;
};

// The most dimensions of a tensor in a file: torch's operations take no more
// (ATen/WrapDimUtilsMulti.h, dim_bitset_size). Some functions here take stack and time for each.
inline constexpr size_t kMaxDims = 64;

// Immutable, cheap to copy, safe to share between threads. Every function throws InconsistentError
// for a shape or a range that does not fit.
class TensorSource {
 public:
  // The elements of `shape` that start at `extent.offset` and step by `strides` elements (all >=
  // 0). Throws CorruptError if any of them lies outside the extent.
  static TensorSource stored(Extent extent, DType dtype, Shape shape, Strides strides);
  // The same, contiguous; the extent must be exactly as long as the tensor.
  static TensorSource stored(Extent extent, DType dtype, Shape shape);
  // torch.zeros(shape, dtype). They lie in no file.
  static TensorSource zeros(DType dtype, Shape shape);
  // torch.cat(parts, dim). At least one part. Their dtypes are equal, and their sizes too except
  // along `dim`.
  static TensorSource cat(int64_t dim, std::vector<TensorSource> parts);
  // torch.cat([part.narrow(0, start, length) for part in parts]): a parameter that is cut over
  // ranks, from their flat tensors. At least one part; all have one dimension and the same type.
  // Memory does not grow with the number of parts.
  static TensorSource cat_narrowed(std::shared_ptr<const std::vector<TensorSource>> parts,
                                   int64_t start, int64_t length);
  // The element-wise mean of float32 tensors of one shape, as torch computes sum(parts) /
  // len(parts). It adds 0 + parts[0] + parts[1] + ... in that order in float32, and divides by
  // float(len). A lone -0.0 becomes +0.0, as in Python. A later to() converts the mean. At least
  // one part. Throws UnsupportedError for another element type, and for parts that are cast or hold
  // zeros(). Throws InconsistentError for a mean or same() within a part.
  static TensorSource mean(std::vector<TensorSource> parts);
  // The mean (w[0]*parts[0] + w[1]*parts[1] + ...) / (w[0] + w[1] + ...) of float32, bfloat16 and
  // float16 tensors of one shape. It is computed in that order in float64. The result is rounded
  // once, to nearest even, to the type of a later to(), else to that of the last part. Products,
  // sums and the quotient are rounded one by one; sums begin with 0. Weights are finite and above
  // 0. Parts may hold a mean() or same(). At least one part. Throws UnsupportedError for other
  // element types, and for parts that are cast, or hold zeros() or a weighted mean. Throws
  // InconsistentError for parts that do not fit.
  static TensorSource weighted_mean(std::vector<TensorSource> parts, std::vector<double> weights);
  // parts[0] + parts[1] + ..., computed in the same way.
  static TensorSource sum(std::vector<TensorSource> parts);
  // The merged weight (LowRankUpdate), of the base's shape and type. It is computed in float64 and
  // rounded once, to nearest even, to the type of a later to(). Throws UnsupportedError for other
  // element types, and for tensors that are cast or are a weighted mean. Throws InconsistentError
  // for sizes that do not fit and for strides that leave a factor.
  static TensorSource low_rank_update(LowRankUpdate update);
  // Tensors that must be equal bit for bit (NaNs that differ in bits differ). The value is
  // parts.front(); the run reads all parts and compares their stored bytes. The error describes the
  // tensors with `what`: "'embed.weight' on tensor-parallel ranks 0 and 1". At least one part, with
  // equal dtypes and shapes. A single part is returned as it is. A part that is itself same() is
  // compared part by part. Throws as mean() does, but not for the element type or for same().
  static TensorSource same(std::vector<TensorSource> parts, std::string what);

  // torch.narrow(dim, start, length)
  TensorSource narrow(int64_t dim, int64_t start, int64_t length) const;
  // torch.reshape(shape): keeps the row-major order of the elements. (torch's view refuses shapes
  // that need a copy; a lazy tensor needs none.)
  TensorSource view(Shape shape) const;
  TensorSource flatten() const { return view({numel()}); }
  // torch.to(dtype), rounding to nearest even. Only once; but a float32 made from a 16-bit float
  // may be converted again.
  TensorSource to(DType dtype) const;

  // The files that hold its elements, with all copies of them, in rising order.
  std::vector<FileId> files() const;
  // The same tensor without copies of same() whose elements lie in `files`, if another copy has no
  // elements there.
  TensorSource without_copies_in(const std::vector<FileId>& files) const;
  // The same tensor without comparisons: of the copies of a same() the first one alone.
  TensorSource one_copy() const;
  // For a stored() tensor with strides of 0: each element once, so these dimensions have size 1.
  // Any other tensor is returned unchanged.
  TensorSource without_repeats() const;
  // True for a stored() tensor that was given strides.
  bool is_strided() const;

  DType dtype() const;
  const Shape& shape() const;
  int64_t numel() const;
  uint64_t nbytes() const { return static_cast<uint64_t>(numel()) * size_of(dtype()); }

  // Emits, in row-major order, the runs that make up elements [first, first + count). Tensors that
  // are concatenated along an inner dimension are interleaved, a block of rows at a time. This goes
  // as far as their bytes lie evenly in the files. Throws UnsupportedError for a stored() tensor
  // that repeats its elements in very many runs.
  using Emit = std::function<void(const SourceRun&)>;
  void lower(int64_t first, int64_t count, const Emit& emit) const;
  void lower(const Emit& emit) const { lower(0, numel(), emit); }

  // The tensor as a view of one file, if it is one: a tool can then map it without a copy. Stored
  // tensors have such a view, and so does any tensor that is one run of bytes. A mean, a same() and
  // zeros() have none.
  std::optional<StridedView> as_strided() const;

 private:
  struct Node;
  // `choose`: which of the copies of a same() stay.
  using Choose = std::function<std::vector<TensorSource>(const std::vector<TensorSource>& copies)>;
  TensorSource choosing(const Choose& choose) const;
  explicit TensorSource(std::shared_ptr<const Node> node) : node_(std::move(node)) {}
  std::shared_ptr<const Node> node_;
};

// Matrices with elements of a tensor, counted in row-major order. Element (i, j) of matrix b is
// number b * batch_stride + i * row_stride + j * column_stride.
struct FactorView {
  TensorSource values;  // float32, bfloat16 or float16
  uint64_t batch_stride = 0;
  uint64_t row_stride = 0;
  uint64_t column_stride = 0;
};

// For each of `batches` matrices W of rows x columns, which follow each other in `base`:
//
//   V = W + scale * (left @ right)           left: rows x rank, right: rank x columns
//
// With a magnitude m it is V * (m / norm), with the norms of V's rows or of its columns. Source:
// peft/tuners/lora/layer.py get_delta_weight and variants.py merge_unsafe. All elements are widened
// to float64, where the products are exact. Sums go by rising rank and column. The result is
// rounded once. So it equals the result of peft with float64 copies, except for the order of sums.
// peft's float32 result differs only by its own roundings.
struct LowRankUpdate {
  TensorSource base;  // float32, bfloat16 or float16
  uint64_t batches = 1;
  uint64_t rows = 0;
  uint64_t columns = 0;
  uint64_t rank = 1;
  std::optional<FactorView> left = {};  // without: ones
  FactorView right;
  double scale = 1;
  // For DoRA: one for each norm. Only for a single matrix.
  std::optional<TensorSource> magnitude = {};
  bool norms_of_columns = false;
};

}  // namespace dsckpt
