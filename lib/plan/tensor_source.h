// TensorSource: a tensor described, not read.
//
// A lazy expression over byte extents of the input files. Its verbs are torch's verbs, so that a
// reader of a ZeRO layout can be held next to the Python it follows. Nothing here does I/O;
// lower() turns the expression into the copies a plan consists of.
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

// How many dimensions a tensor of a file may have: torch's operations take no more
// (ATen/WrapDimUtilsMulti.h, dim_bitset_size). Some here take stack and time for each.
inline constexpr size_t kMaxDims = 64;

// Immutable, cheap to copy, safe to share between threads. Every function that is given a shape or
// a range that does not fit throws InconsistentError.
class TensorSource {
 public:
  // The elements of `shape` that start at `extent.offset` and step by `strides` elements (all >=
  // 0). Throws CorruptError if any of them lies outside the extent.
  static TensorSource stored(Extent extent, DType dtype, Shape shape, Strides strides);
  // The same, contiguous; the extent must be exactly as long as the tensor.
  static TensorSource stored(Extent extent, DType dtype, Shape shape);
  // torch.zeros(shape, dtype). They lie in no file.
  static TensorSource zeros(DType dtype, Shape shape);
  // torch.cat(parts, dim). At least one part; equal dtypes and equal sizes but along `dim`.
  static TensorSource cat(int64_t dim, std::vector<TensorSource> parts);
  // torch.cat([part.narrow(0, start, length) for part in parts]): what a parameter that is cut over
  // ranks is, by their flat tensors. All of one dimension and one type, at least one; plain memory
  // for a tensor, however many parts there are.
  static TensorSource cat_narrowed(std::shared_ptr<const std::vector<TensorSource>> parts,
                                   int64_t start, int64_t length);
  // The element-wise mean of float32 tensors of one shape as torch computes sum(parts) /
  // len(parts): 0 + parts[0] + parts[1] + ... in that order in float32, divided by float(len). A
  // lone -0.0 becomes +0.0, as in Python. A later to() converts the mean. At least one part; throws
  // UnsupportedError for another element type and for parts that are cast or hold zeros(),
  // InconsistentError for a mean or same() within a part.
  static TensorSource mean(std::vector<TensorSource> parts);
  // (w[0]*parts[0] + w[1]*parts[1] + ...) / (w[0] + w[1] + ...) of float32, bfloat16 and float16
  // tensors of one shape, in that order in float64, rounded once, to nearest even, to the type that
  // a later to() asks for; without one, to that of the last part. Products, sums and the quotient
  // are rounded one by one; sums begin with 0. Weights are finite and above 0. Parts may hold a
  // mean() or same(). At least one part; throws UnsupportedError for other element types and for
  // parts that are cast, hold zeros() or a weighted mean, InconsistentError for what does not fit.
  static TensorSource weighted_mean(std::vector<TensorSource> parts, std::vector<double> weights);
  // parts[0] + parts[1] + ..., likewise.
  static TensorSource sum(std::vector<TensorSource> parts);
  // The merged weight, of the base's shape and type (LowRankUpdate), computed in float64 and
  // rounded once, to nearest even, to the type that a later to() asks for. Throws UnsupportedError
  // for other element types and for tensors that are cast or are a weighted mean,
  // InconsistentError for sizes that do not fit and strides that lead out of a factor.
  static TensorSource low_rank_update(LowRankUpdate update);
  // Tensors that must be equal bit for bit (NaNs that differ in bits differ): the value is
  // parts.front(); whoever runs the plan reads all of them and compares what is stored. `what` says
  // in the error what they are: "'embed.weight' on tensor-parallel ranks 0 and 1". At least one
  // part, equal dtypes and shapes; one part alone is returned as it is, and a part that is same()
  // is compared part by part. Throws as mean() does, but for the element type and same() itself.
  static TensorSource same(std::vector<TensorSource> parts, std::string what);

  // torch.narrow(dim, start, length)
  TensorSource narrow(int64_t dim, int64_t start, int64_t length) const;
  // torch.reshape(shape): the row-major order of the elements does not change. (torch's view
  // refuses what would need a copy; a lazy tensor never does.)
  TensorSource view(Shape shape) const;
  TensorSource flatten() const { return view({numel()}); }
  // torch.to(dtype), rounding to nearest even. Once; but what was made float32 of a 16-bit float
  // may become another type still.
  TensorSource to(DType dtype) const;

  // The files that its elements lie in, all copies of them, rising.
  std::vector<FileId> files() const;
  // The same tensor; of copies that must be same(), those with elements in `files` are left out
  // where another has none there.
  TensorSource without_copies_in(const std::vector<FileId>& files) const;
  // Of a stored() tensor with strides of 0: each element once, so these dimensions have size 1.
  // Any other tensor is returned as it is.
  TensorSource without_repeats() const;
  // Whether it is a stored() tensor that was given strides.
  bool is_strided() const;

  DType dtype() const;
  const Shape& shape() const;
  int64_t numel() const;
  uint64_t nbytes() const { return static_cast<uint64_t>(numel()) * size_of(dtype()); }

  // Emits, in row-major order, the runs that make up elements [first, first + count). Tensors that
  // are concatenated along an inner dimension are interleaved a block of rows at a time, as far as
  // their bytes lie evenly in the files. Throws UnsupportedError for a stored() tensor that repeats
  // its elements in very many runs.
  using Emit = std::function<void(const SourceRun&)>;
  void lower(int64_t first, int64_t count, const Emit& emit) const;
  void lower(const Emit& emit) const { lower(0, numel(), emit); }

  // The view of one file that this tensor is, if it is one: a tool can then map it without a copy.
  // Found for stored tensors and for whatever turns out to be one run of bytes, never for a mean,
  // for what must be the same or for zeros.
  std::optional<StridedView> as_strided() const;

 private:
  struct Node;
  explicit TensorSource(std::shared_ptr<const Node> node) : node_(std::move(node)) {}
  std::shared_ptr<const Node> node_;
};

// Matrices whose elements are picked from a tensor: element (i, j) of matrix number b is, counted
// in row-major order, number b * batch_stride + i * row_stride + j * column_stride.
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
// and with a magnitude m V * (m / norm), where the norms are those of V's rows, or of its columns:
// peft/tuners/lora/layer.py get_delta_weight and variants.py merge_unsafe. The elements of all
// three are widened to float64, where the products are exact; sums go by rising rank and column.
// The result is rounded once. So it is what peft computes of float64 copies, but for the order of
// sums; its float32 differs by its own roundings alone.
struct LowRankUpdate {
  TensorSource base;  // float32, bfloat16 or float16
  uint64_t batches = 1;
  uint64_t rows = 0;
  uint64_t columns = 0;
  uint64_t rank = 1;
  std::optional<FactorView> left = {};  // without: ones
  FactorView right;
  double scale = 1;
  // Of DoRA, as many as there are norms. Only of one matrix.
  std::optional<TensorSource> magnitude = {};
  bool norms_of_columns = false;
};

}  // namespace dsckpt
