#include "plan/tensor_source.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <limits>
#include <set>
#include <string>
#include <utility>
#include <variant>

#include "base/bytes.h"
#include "base/text.h"
#include "dsckpt/error.h"
#include "plan/piece_count.h"
#include "plan/run_cursor.h"

namespace dsckpt {
namespace {

// Elements spanned by one step of dimension `dim - 1`: the product of the sizes from `dim` on.
int64_t inner_numel(const Shape& shape, size_t dim) {
  int64_t count = 1;
  for (size_t i = dim; i < shape.size(); ++i) count *= shape[i];
  return count;
}

void check_range(int64_t start, int64_t length, int64_t size) {
  if (start >= 0 && length >= 0 && start <= size && length <= size - start) return;
  throw InconsistentError({}, "elements [" + std::to_string(start) + ", " + std::to_string(start) +
                                  " + " + std::to_string(length) + ") of " + std::to_string(size));
}

// A tensor may consist of so many runs, even if they repeat its elements. More are accepted only if
// the extent has at least two bytes for each.
constexpr uint64_t kMostRepeatedRuns = 1 << 17;

size_t checked_dim(int64_t dim, const Shape& shape) {
  if (dim < 0 || static_cast<size_t>(dim) >= shape.size()) {
    throw InconsistentError(
        {}, "dimension " + std::to_string(dim) + " of a tensor of shape " + to_text(shape));
  }
  return static_cast<size_t>(dim);
}

}  // namespace

struct TensorSource::Node {
  struct Strided {
    Strides strides;
    // The shape and strides after neighbouring dimensions that form one run are merged. The last
    // dimension has stride 1.
    Shape merged_shape;
    Strides merged_strides;
  };
  struct Stored {
    Extent extent;
    std::unique_ptr<const Strided> strided;  // nullptr: contiguous
  };
  struct Zeros {};
  struct Cat {
    std::vector<TensorSource> parts;
    std::vector<int64_t> begins;  // of each part within one inner block, and the block's length
    size_t dim;
  };
  struct CatNarrowed {
    std::shared_ptr<const std::vector<TensorSource>> parts;
    int64_t start;
    int64_t length;
  };
  struct Narrow {
    TensorSource child;
    size_t dim;
    int64_t start;
  };
  struct View {
    TensorSource child;
  };
  struct Cast {
    TensorSource child;
  };
  struct Combined {
    Combine how;
    std::vector<TensorSource> parts;
    std::string what;
  };
  struct Weighted {
    std::vector<TensorSource> parts;
    std::vector<double> weights;
    std::vector<double> shares;  // WeightedTerm::share
  };

  struct Updated {
    std::shared_ptr<const LowRankUpdate> update;
  };

  // The kinds of nodes anywhere in the expression.
  struct Holds {
    bool cast = false;
    bool combined = false;
    bool zeros = false;
    bool weighted = false;  // or a low-rank update; combined, too

    void add(const Holds& other) {
      cast |= other.cast;
      combined |= other.combined;
      zeros |= other.zeros;
      weighted |= other.weighted;
    }
  };

  DType dtype;
  Shape shape;
  int64_t count;
  Holds holds;
  std::variant<Stored, Zeros, Cat, CatNarrowed, Narrow, View, Cast, Combined, Weighted, Updated>
      what;

  // Emits the runs of elements [first, first + length), which are converted to `result`.
  void lower(int64_t first, int64_t length, DType result, const Emit& emit) const;
  void lower_kind(const Stored& node, int64_t first, int64_t length, DType result,
                  const Emit& emit) const;
  void lower_kind(const Zeros& node, int64_t first, int64_t length, DType result,
                  const Emit& emit) const;
  void lower_kind(const Cat& node, int64_t first, int64_t length, DType result,
                  const Emit& emit) const;
  void lower_kind(const CatNarrowed& node, int64_t first, int64_t length, DType result,
                  const Emit& emit) const;
  void lower_kind(const Narrow& node, int64_t first, int64_t length, DType result,
                  const Emit& emit) const;
  void lower_kind(const View& node, int64_t first, int64_t length, DType result,
                  const Emit& emit) const;
  void lower_kind(const Cast& node, int64_t first, int64_t length, DType result,
                  const Emit& emit) const;
  void lower_kind(const Combined& node, int64_t first, int64_t length, DType result,
                  const Emit& emit) const;
  void lower_kind(const Weighted& node, int64_t first, int64_t length, DType result,
                  const Emit& emit) const;
  void lower_kind(const Updated& node, int64_t first, int64_t length, DType result,
                  const Emit& emit) const;
  void lower_pieces(const Cat& node, int64_t first, int64_t length, DType result,
                    const Emit& emit) const;
  void lower_blocks(const Cat& node, int64_t begin, int64_t end, DType result,
                    const Emit& emit) const;
  void lower_rows(const Narrow& node, int64_t first, int64_t length, DType result,
                  const Emit& emit) const;
  void lower_even_rows(const Narrow& node, int64_t begin, int64_t end, DType result,
                       const Emit& emit) const;
  static TensorSource columns(const Cat& node, int64_t start, int64_t length);
  static std::unique_ptr<const Strided> merged(const Shape& shape, Strides strides, bool is_empty);
  static TensorSource combine(Combine how, std::vector<TensorSource> parts, std::string what);
  static TensorSource weigh(std::vector<TensorSource> parts, std::vector<double> weights,
                            std::vector<double> shares);
};

namespace {

template <typename... F>
struct Overloaded : F... {
  using F::operator()...;
};
template <typename... F>
Overloaded(F...) -> Overloaded<F...>;

// A part of a concatenation, and how far it is read. Each row takes one block of it.
struct Column {
  RunCursor cursor;
  uint64_t block;  // elements
};

// Limits the runs that are held for several parts at once. Parts of few runs are not counted. The
// others may read the same bytes repeatedly only up to a common limit.
class RunCount {
 public:
  void begin_part() { of_part_ = 0; }

  // Throws like PieceCount::add().
  void add(const SourceRun& run) {
    if (++of_part_ > kFew) pieces_.add(run);
  }

 private:
  static constexpr uint64_t kFew = 64;  // those of nearly all tensors
  uint64_t of_part_ = 0;
  PieceCount pieces_{1 << 20};
};

// Appends `run` to `runs`, or lengthens the newest run if `run` continues it.
void append(std::vector<SourceRun>& runs, const SourceRun& run) {
  const auto plain = [](const SourceRun& one) {
    return one.combine == Combine::none && one.rows == 1;
  };
  if (!runs.empty() && plain(runs.back()) && plain(run) && runs.back().stored == run.stored &&
      runs.back().source.is_continued_by(run.source)) {
    runs.back().source.row_bytes += run.source.row_bytes;
  } else {
    runs.push_back(run);
  }
}

// Returns a run of `rows` rows. Each consists of the next block of every part.
SourceRun interleaved(const std::vector<Column>& parts, uint64_t rows, DType result) {
  std::vector<Rows> columns;
  uint64_t row_bytes = 0;
  for (const Column& part : parts) {
    const Rows column = part.cursor.blocks(part.block);
    row_bytes = checked_add(row_bytes, column.row_bytes);
    if (!columns.empty() && columns.back().stride == column.stride &&
        columns.back().is_continued_by(column)) {
      columns.back().row_bytes += column.row_bytes;
    } else {
      columns.push_back(column);
    }
  }
  SourceRun run{.source = {.row_bytes = row_bytes},
                .rows = rows,
                .stored = parts[0].cursor.stored(),
                .result = result};
  if (columns.size() > 1) {
    run.combine = Combine::interleave;
    run.operands = std::move(columns);
    return run;
  }
  run.source = columns[0];
  if (run.source.contiguous()) {
    run.source.row_bytes *= rows;
    run.rows = 1;
  }
  return run;
}

}  // namespace

TensorSource TensorSource::stored(Extent extent, DType dtype, Shape shape, Strides strides) {
  const int64_t count = dsckpt::numel(shape);
  if (strides.size() != shape.size()) {
    throw CorruptError({},
                       counted(shape.size(), "size") + " but " + counted(strides.size(), "stride"));
  }
  if (count > 0) {
    uint64_t last = 0;
    for (size_t i = 0; i < shape.size(); ++i) {
      if (shape[i] > 1 && strides[i] < 0) {
        throw CorruptError({}, "negative stride " + std::to_string(strides[i]));
      }
      if (shape[i] > 1) {
        last = checked_add(last, checked_mul(static_cast<uint64_t>(shape[i] - 1),
                                             static_cast<uint64_t>(strides[i])));
      }
    }
    const uint64_t needed = checked_mul(checked_add(last, 1), size_of(dtype));
    if (needed > extent.size) {
      throw CorruptError({.offset = extent.offset}, "a tensor of shape " + to_text(shape) +
                                                        " needs " + counted(needed, "byte") +
                                                        ", its storage has " +
                                                        std::to_string(extent.size));
    }
    extent.size = needed;
    // This keeps offsets and products of sizes and strides far from overflow.
    if (checked_add(extent.offset, extent.size) > uint64_t{1} << 62) {
      throw CorruptError({.offset = extent.offset}, "a tensor lies beyond any file's end");
    }
  } else {
    extent.size = 0;
  }

  Node::Stored node{extent, nullptr};
  if (strides != contiguous_strides(shape)) {
    node.strided = Node::merged(shape, std::move(strides), count == 0);
  }
  return TensorSource(
      std::make_shared<const Node>(Node{dtype, std::move(shape), count, {}, std::move(node)}));
}

std::unique_ptr<const TensorSource::Node::Strided> TensorSource::Node::merged(const Shape& shape,
                                                                              Strides strides,
                                                                              bool is_empty) {
  auto node = std::make_unique<Strided>();
  for (size_t i = 0; i < shape.size(); ++i) {
    if (shape[i] == 1 || is_empty) continue;
    if (!node->merged_shape.empty() && node->merged_strides.back() == shape[i] * strides[i]) {
      node->merged_shape.back() *= shape[i];
      node->merged_strides.back() = strides[i];
    } else {
      node->merged_shape.push_back(shape[i]);
      node->merged_strides.push_back(strides[i]);
    }
  }
  if (node->merged_shape.empty() || node->merged_strides.back() != 1) {
    node->merged_shape.push_back(1);
    node->merged_strides.push_back(1);
  }
  node->strides = std::move(strides);
  return node;
}

TensorSource TensorSource::stored(Extent extent, DType dtype, Shape shape) {
  const uint64_t bytes = checked_mul(static_cast<uint64_t>(dsckpt::numel(shape)), size_of(dtype));
  if (bytes != extent.size) {
    throw CorruptError({.offset = extent.offset}, "a tensor of shape " + to_text(shape) + " is " +
                                                      counted(bytes, "byte") + " long, not " +
                                                      std::to_string(extent.size));
  }
  Strides strides = contiguous_strides(shape);
  return stored(extent, dtype, std::move(shape), std::move(strides));
}

TensorSource TensorSource::zeros(DType dtype, Shape shape) {
  const int64_t count = dsckpt::numel(shape);
  checked_mul(static_cast<uint64_t>(count), size_of(dtype));
  return TensorSource(std::make_shared<const Node>(
      Node{dtype, std::move(shape), count, {.zeros = true}, Node::Zeros{}}));
}

TensorSource TensorSource::cat(int64_t dim, std::vector<TensorSource> parts) {
  if (parts.empty()) throw InconsistentError({}, "nothing to concatenate");
  Shape shape = parts.front().shape();
  const size_t d = checked_dim(dim, shape);
  Node::Holds holds;
  uint64_t total = 0;
  for (const TensorSource& part : parts) {
    Shape expected = shape;
    if (part.shape().size() == shape.size()) expected[d] = part.shape()[d];
    if (part.dtype() != parts.front().dtype() || part.shape() != expected) {
      throw InconsistentError({}, "cannot concatenate " + std::string(torch_name(part.dtype())) +
                                      to_text(part.shape()) + " and " +
                                      std::string(torch_name(parts.front().dtype())) +
                                      to_text(shape) + " along dimension " + std::to_string(dim));
    }
    total = checked_add(total, static_cast<uint64_t>(part.shape()[d]));
    holds.add(part.node_->holds);
  }
  if (total > static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) {
    throw CorruptError({}, "a tensor has more than 2^63 elements");
  }
  shape[d] = static_cast<int64_t>(total);
  // Throws if the products below would overflow.
  const int64_t count = dsckpt::numel(shape);
  std::vector<int64_t> begins{0};
  for (const TensorSource& part : parts) {
    begins.push_back(begins.back() + inner_numel(part.shape(), d));
  }
  const DType dtype = parts.front().dtype();
  return TensorSource(std::make_shared<const Node>(Node{
      dtype, std::move(shape), count, holds, Node::Cat{std::move(parts), std::move(begins), d}}));
}

TensorSource TensorSource::cat_narrowed(std::shared_ptr<const std::vector<TensorSource>> parts,
                                        int64_t start, int64_t length) {
  if (parts->empty()) throw InconsistentError({}, "nothing to concatenate");
  Node::Holds holds;
  const DType dtype = parts->front().dtype();
  for (const TensorSource& part : *parts) {
    if (part.dtype() != dtype || part.shape().size() != 1) {
      throw InconsistentError({}, "cannot concatenate parts of " +
                                      std::string(torch_name(part.dtype())) +
                                      to_text(part.shape()));
    }
    check_range(start, length, part.shape()[0]);
    holds.add(part.node_->holds);
  }
  const int64_t count = dsckpt::numel({static_cast<int64_t>(parts->size()), length});
  return TensorSource(std::make_shared<const Node>(
      Node{dtype, {count}, count, holds, Node::CatNarrowed{std::move(parts), start, length}}));
}

TensorSource TensorSource::Node::combine(Combine how, std::vector<TensorSource> parts,
                                         std::string what) {
  const Node& front = *parts.front().node_;
  for (const TensorSource& part : parts) {
    if (part.dtype() != front.dtype || part.shape() != front.shape) {
      throw InconsistentError({}, "cannot combine " + std::string(torch_name(part.dtype())) +
                                      to_text(part.shape()) + " and " +
                                      std::string(torch_name(front.dtype)) + to_text(front.shape));
    }
    if (part.node_->holds.combined) {
      throw InconsistentError({}, "means and comparisons of tensors cannot be combined again");
    }
    if (part.node_->holds.cast) throw UnsupportedError({}, "combines tensors that are cast");
    if (part.node_->holds.zeros) throw UnsupportedError({}, "combines tensors that lie in no file");
  }
  return TensorSource(
      std::make_shared<const Node>(Node{front.dtype,
                                        front.shape,
                                        front.count,
                                        {.combined = true},
                                        Combined{how, std::move(parts), std::move(what)}}));
}

TensorSource TensorSource::mean(std::vector<TensorSource> parts) {
  if (parts.empty()) throw InconsistentError({}, "nothing to take the mean of");
  if (parts.front().dtype() != DType::float32) {
    throw UnsupportedError({}, "the mean of " + std::string(torch_name(parts.front().dtype())));
  }
  return Node::combine(Combine::mean, std::move(parts), {});
}

TensorSource TensorSource::weighted_mean(std::vector<TensorSource> parts,
                                         std::vector<double> weights) {
  std::vector<double> shares = weights;
  return Node::weigh(std::move(parts), std::move(weights), std::move(shares));
}

TensorSource TensorSource::sum(std::vector<TensorSource> parts) {
  std::vector<double> shares(parts.size());
  if (!shares.empty()) shares.front() = 1;
  const std::vector<double> weights(parts.size(), 1.0);
  return Node::weigh(std::move(parts), weights, std::move(shares));
}

TensorSource TensorSource::Node::weigh(std::vector<TensorSource> parts, std::vector<double> weights,
                                       std::vector<double> shares) {
  if (parts.empty() || parts.size() != weights.size()) {
    throw InconsistentError(
        {}, counted(parts.size(), "tensor") + " with " + counted(weights.size(), "weight"));
  }
  for (const double weight : weights) {
    if (std::isfinite(weight) && weight > 0) continue;
    throw InconsistentError({}, "a weight of " + std::to_string(weight));
  }
  const Node& back = *parts.back().node_;
  for (const TensorSource& part : parts) {
    const DType type = part.dtype();
    if (type != DType::float32 && type != DType::bfloat16 && type != DType::float16) {
      throw UnsupportedError({}, "the weighted mean of " + std::string(torch_name(type)));
    }
    if (part.shape() != back.shape) {
      throw InconsistentError({}, "the weighted mean of tensors of shapes " +
                                      to_text(part.shape()) + " and " + to_text(back.shape));
    }
    const Node::Holds& holds = part.node_->holds;
    if (holds.cast || holds.zeros || holds.weighted) {
      throw UnsupportedError({},
                             "the weighted mean of tensors that are cast, lie in no file or "
                             "are such a mean");
    }
  }
  return TensorSource(std::make_shared<const Node>(
      Node{back.dtype,
           back.shape,
           back.count,
           {.combined = true, .weighted = true},
           Node::Weighted{std::move(parts), std::move(weights), std::move(shares)}}));
}

namespace {

bool widens_to_float32(DType dtype) {
  return dtype == DType::float32 || dtype == DType::bfloat16 || dtype == DType::float16;
}

void check_factor(const FactorView& factor, uint64_t batches, uint64_t rows, uint64_t columns) {
  uint64_t last = 0;
  for (const auto& [count, stride] : {std::pair(batches, factor.batch_stride),
                                      {rows, factor.row_stride},
                                      {columns, factor.column_stride}}) {
    last = checked_add(last, checked_mul(count - 1, stride));
  }
  if (last < static_cast<uint64_t>(factor.values.numel())) return;
  throw InconsistentError({}, "a factor of shape " + to_text(factor.values.shape()) +
                                  " for a matrix of " + std::to_string(rows) + " x " +
                                  std::to_string(columns));
}

}  // namespace

TensorSource TensorSource::low_rank_update(LowRankUpdate update) {
  const Node& base = *update.base.node_;
  const auto check_values = [](const TensorSource& values) {
    if (!widens_to_float32(values.dtype())) {
      throw UnsupportedError({},
                             "a low-rank update with " + std::string(torch_name(values.dtype())));
    }
    const Node::Holds& holds = values.node_->holds;
    if (holds.cast || holds.weighted) {
      throw UnsupportedError({}, "a low-rank update of tensors that are cast or computed");
    }
  };
  const uint64_t matrix = checked_mul(update.rows, update.columns);
  const uint64_t elements = checked_mul(update.batches, matrix);
  if (elements != static_cast<uint64_t>(base.count) || elements == 0 || update.rank == 0) {
    throw InconsistentError({}, "a low-rank update of " + counted(elements, "element") +
                                    " for a tensor of shape " + to_text(base.shape));
  }
  check_values(update.base);
  check_values(update.right.values);
  check_factor(update.right, update.batches, update.rank, update.columns);
  if (update.left) {
    check_values(update.left->values);
    check_factor(*update.left, update.batches, update.rows, update.rank);
  }
  if (update.magnitude) {
    check_values(*update.magnitude);
    const uint64_t norms = update.norms_of_columns ? update.columns : update.rows;
    if (update.batches != 1 || static_cast<uint64_t>(update.magnitude->numel()) != norms) {
      throw InconsistentError({}, "a magnitude of shape " + to_text(update.magnitude->shape()) +
                                      " for " + counted(norms, "norm"));
    }
  }
  return TensorSource(std::make_shared<const Node>(
      Node{base.dtype,
           base.shape,
           base.count,
           {.combined = true, .weighted = true},
           Node::Updated{std::make_shared<const LowRankUpdate>(std::move(update))}}));
}

TensorSource TensorSource::same(std::vector<TensorSource> parts, std::string what) {
  if (parts.empty()) throw InconsistentError({}, "nothing to compare");
  if (parts.size() == 1) return std::move(parts.front());
  // A comparison of comparisons becomes one comparison of all their parts.
  std::vector<TensorSource> all;
  for (TensorSource& part : parts) {
    const auto* inner = std::get_if<Node::Combined>(&part.node_->what);
    if (inner != nullptr && inner->how == Combine::same) {
      all.insert(all.end(), inner->parts.begin(), inner->parts.end());
    } else {
      all.push_back(std::move(part));
    }
  }
  return Node::combine(Combine::same, std::move(all), std::move(what));
}

// Columns [start, start + length) of the concatenated dimension.
TensorSource TensorSource::Node::columns(const Cat& node, int64_t start, int64_t length) {
  std::vector<TensorSource> parts;
  for (const TensorSource& part : node.parts) {
    const int64_t width = part.shape()[node.dim];
    const int64_t first = std::max<int64_t>(start, 0);
    const int64_t end = std::min(start + length, width);
    if (first < end) {
      parts.push_back(end - first == width
                          ? part
                          : part.narrow(static_cast<int64_t>(node.dim), first, end - first));
    }
    start -= width;
  }
  return parts.size() == 1 ? parts.front() : cat(static_cast<int64_t>(node.dim), std::move(parts));
}

TensorSource TensorSource::narrow(int64_t dim, int64_t start, int64_t length) const {
  const size_t d = checked_dim(dim, shape());
  check_range(start, length, shape()[d]);
  Shape narrowed = shape();
  narrowed[d] = length;
  if (std::holds_alternative<Node::Zeros>(node_->what)) return zeros(dtype(), std::move(narrowed));
  // Columns of a concatenation: lowered row by row they would be as many runs as there are rows.
  const auto* joined = std::get_if<Node::Cat>(&node_->what);
  if (joined != nullptr && joined->dim == d && d > 0 && length > 0 && length < shape()[d]) {
    return Node::columns(*joined, start, length);
  }
  const int64_t count = dsckpt::numel(narrowed);
  return TensorSource(std::make_shared<const Node>(
      Node{dtype(), std::move(narrowed), count, node_->holds, Node::Narrow{*this, d, start}}));
}

TensorSource TensorSource::view(Shape shape) const {
  const int64_t count = dsckpt::numel(shape);
  if (count != numel()) {
    throw InconsistentError(
        {}, "a tensor of " + counted(numel(), "element") + " viewed as shape " + to_text(shape));
  }
  if (std::holds_alternative<Node::Zeros>(node_->what)) return zeros(dtype(), std::move(shape));
  return TensorSource(std::make_shared<const Node>(
      Node{dtype(), std::move(shape), count, node_->holds, Node::View{*this}}));
}

namespace {

bool is_16_bit_float(DType dtype) {
  return dtype == DType::bfloat16 || dtype == DType::float16;
}

}  // namespace

TensorSource TensorSource::to(DType dtype) const {
  if (dtype == this->dtype()) return *this;
  if (std::holds_alternative<Node::Zeros>(node_->what)) return zeros(dtype, shape());
  // A 16-bit type converts to float32 exactly, so the step through float32 is skipped.
  if (const auto* cast = std::get_if<Node::Cast>(&node_->what);
      cast != nullptr && this->dtype() == DType::float32 && is_16_bit_float(cast->child.dtype())) {
    return cast->child.to(dtype);
  }
  Node::Holds holds = node_->holds;
  if (holds.cast) throw InconsistentError({}, "a tensor can be cast once only");
  holds.cast = true;
  return TensorSource(
      std::make_shared<const Node>(Node{dtype, shape(), numel(), holds, Node::Cast{*this}}));
}

std::vector<FileId> TensorSource::files() const {
  if (const auto* stored = std::get_if<Node::Stored>(&node_->what)) {
    return numel() == 0 ? std::vector<FileId>() : std::vector{stored->extent.file};
  }
  std::set<FileId> files;
  lower([&](const SourceRun& run) {
    for (const Rows& rows : run.sources()) files.insert(rows.file);
    if (run.update == nullptr) return;
    const auto add = [&](const TensorSource& tensor) {
      const std::vector<FileId> its = tensor.files();
      files.insert(its.begin(), its.end());
    };
    add(run.update->base);
    add(run.update->right.values);
    if (run.update->left) add(run.update->left->values);
    if (run.update->magnitude) add(*run.update->magnitude);
  });
  return {files.begin(), files.end()};
}

TensorSource TensorSource::without_copies_in(const std::vector<FileId>& files) const {
  const auto is_whole = [&](const TensorSource& part) {
    const std::vector<FileId> its = part.files();
    return std::none_of(its.begin(), its.end(), [&](FileId file) {
      return std::find(files.begin(), files.end(), file) != files.end();
    });
  };
  return choosing([&](const std::vector<TensorSource>& copies) {
    std::vector<TensorSource> whole;
    std::copy_if(copies.begin(), copies.end(), std::back_inserter(whole), is_whole);
    return whole.empty() ? copies : whole;
  });
}

TensorSource TensorSource::one_copy() const {
  return choosing([](const std::vector<TensorSource>& copies) {
    return std::vector<TensorSource>{copies.front()};
  });
}

TensorSource TensorSource::choosing(const Choose& choose) const {
  if (!node_->holds.combined) return *this;
  const auto of_each = [&](const std::vector<TensorSource>& parts) {
    std::vector<TensorSource> out;
    for (const TensorSource& part : parts) out.push_back(part.choosing(choose));
    return out;
  };
  return std::visit(
      Overloaded{[&](const Node::Stored&) { return *this; },
                 [&](const Node::Zeros&) { return *this; },
                 [&](const Node::Cat& cat) {
                   return TensorSource::cat(static_cast<int64_t>(cat.dim), of_each(cat.parts));
                 },
                 [&](const Node::CatNarrowed& cat) {
                   return cat_narrowed(
                       std::make_shared<const std::vector<TensorSource>>(of_each(*cat.parts)),
                       cat.start, cat.length);
                 },
                 [&](const Node::Narrow& narrow) {
                   return narrow.child.choosing(choose).narrow(static_cast<int64_t>(narrow.dim),
                                                               narrow.start, shape()[narrow.dim]);
                 },
                 [&](const Node::View& view) { return view.child.choosing(choose).view(shape()); },
                 [&](const Node::Cast& cast) { return cast.child.choosing(choose).to(dtype()); },
                 [&](const Node::Combined& combined) {
                   if (combined.how != Combine::same) return *this;
                   return TensorSource::same(choose(combined.parts), combined.what);
                 },
                 [&](const Node::Weighted& mean) {
                   return Node::weigh(of_each(mean.parts), mean.weights, mean.shares);
                 },
                 [&](const Node::Updated&) { return *this; }},
      node_->what);
}

TensorSource TensorSource::without_repeats() const {
  if (!is_strided() || numel() == 0) return *this;
  const auto& node = std::get<Node::Stored>(node_->what);
  Shape shape = this->shape();
  for (size_t i = 0; i < shape.size(); ++i) {
    if (node.strided->strides[i] == 0) shape[i] = 1;
  }
  return stored(node.extent, dtype(), std::move(shape), node.strided->strides);
}

bool TensorSource::is_strided() const {
  const auto* node = std::get_if<Node::Stored>(&node_->what);
  return node != nullptr && node->strided;
}

DType TensorSource::dtype() const {
  return node_->dtype;
}
const Shape& TensorSource::shape() const {
  return node_->shape;
}
int64_t TensorSource::numel() const {
  return node_->count;
}

namespace {

// Calls `whole` for the blocks [begin, end) that lie in [first, first + length) as a whole, and
// `rest` for the elements before and after them. With fewer than two blocks, `rest` gets them all.
template <typename Rest, typename Whole>
void in_blocks(int64_t first, int64_t length, int64_t block, const Rest& rest, const Whole& whole) {
  if (length == 0) return;
  const int64_t begin = first / block + (first % block != 0);
  const int64_t end = (first + length) / block;
  if (end - begin < 2) return rest(first, length);
  rest(first, begin * block - first);
  whole(begin, end);
  rest(end * block, first + length - end * block);
}

}  // namespace

// Lowers the elements [first, first + length) part by part.
void TensorSource::Node::lower_pieces(const Cat& node, int64_t first, int64_t length, DType result,
                                      const Emit& emit) const {
  const int64_t block = node.begins.back();
  while (length > 0) {
    const int64_t within = first % block;
    const auto after = std::upper_bound(node.begins.begin(), node.begins.end() - 1, within);
    const size_t part = static_cast<size_t>(after - node.begins.begin()) - 1;
    const Node& child = *node.parts[part].node_;
    const int64_t part_block = inner_numel(child.shape, node.dim);
    const int64_t in_part = within - node.begins[part];
    const int64_t taken = std::min(part_block - in_part, length);
    child.lower(first / block * part_block + in_part, taken, result, emit);
    first += taken;
    length -= taken;
  }
}

// Lowers the blocks [begin, end). A matrix has many rows, but each part has few runs: one for each
// file that holds some of it.
void TensorSource::Node::lower_blocks(const Cat& node, int64_t begin, int64_t end, DType result,
                                      const Emit& emit) const {
  std::vector<Column> parts;
  RunCount held;
  for (const TensorSource& part : node.parts) {
    const Node& child = *part.node_;
    const int64_t block = inner_numel(child.shape, node.dim);
    if (block == 0) continue;
    std::vector<SourceRun> runs;
    held.begin_part();
    child.lower(begin * block, (end - begin) * block, result, [&](const SourceRun& run) {
      held.add(run);
      append(runs, run);
    });
    parts.push_back({RunCursor(std::move(runs)), static_cast<uint64_t>(block)});
  }
  while (begin < end) {
    uint64_t even = static_cast<uint64_t>(end - begin);
    for (const auto& [cursor, block] : parts) {
      const bool alike = cursor.stored() == parts[0].cursor.stored();
      even = alike ? std::min(even, cursor.even_blocks(block)) : 0;
    }
    if (even >= 2) {
      emit(interleaved(parts, even, result));
    } else {
      even = 1;
      lower_pieces(node, begin * node.begins.back(), node.begins.back(), result, emit);
    }
    for (auto& [cursor, block] : parts) cursor.advance(even * block);
    begin += static_cast<int64_t>(even);
  }
}

// Emits as many whole rows at a time as the last two dimensions have.
void TensorSource::Node::lower_kind(const Stored& node, int64_t first, int64_t length, DType result,
                                    const Emit& emit) const {
  const uint64_t element = size_of(dtype);
  if (!node.strided) {
    if (length == 0) return;
    const uint64_t row_bytes = static_cast<uint64_t>(length) * element;
    return emit({.source = {.file = node.extent.file,
                            .offset = node.extent.offset + static_cast<uint64_t>(first) * element,
                            .row_bytes = row_bytes},
                 .stored = dtype,
                 .result = result});
  }
  const Shape& sizes = node.strided->merged_shape;
  const Strides& steps = node.strided->merged_strides;
  const size_t rank = sizes.size();
  const int64_t row = sizes[rank - 1];
  const int64_t rows = rank >= 2 ? sizes[rank - 2] : 1;
  const int64_t row_step = rank >= 2 ? steps[rank - 2] : 0;
  const uint64_t runs = static_cast<uint64_t>(length / row / rows);
  if (runs > kMostRepeatedRuns && runs > node.extent.size / 2) {
    throw UnsupportedError({}, "repeats its elements in " + counted(runs, "piece"));
  }
  while (length > 0) {
    const int64_t column = first % row;
    int64_t index = first / row;
    const int64_t row_index = index % rows;
    int64_t at = column + row_index * row_step;
    index /= rows;
    for (size_t i = rank >= 2 ? rank - 2 : 0; i-- > 0;) {
      at += index % sizes[i] * steps[i];
      index /= sizes[i];
    }
    const bool whole_rows = column == 0 && length >= row;
    const int64_t taken_row = whole_rows ? row : std::min(row - column, length);
    const int64_t taken_rows = whole_rows ? std::min(rows - row_index, length / row) : 1;
    emit({.source = {.file = node.extent.file,
                     .offset = node.extent.offset + static_cast<uint64_t>(at) * element,
                     .row_bytes = static_cast<uint64_t>(taken_row) * element,
                     .stride = row_step * static_cast<int64_t>(element)},
          .rows = static_cast<uint64_t>(taken_rows),
          .stored = dtype,
          .result = result});
    first += taken_row * taken_rows;
    length -= taken_row * taken_rows;
  }
}

void TensorSource::Node::lower_kind(const Zeros&, int64_t, int64_t length, DType result,
                                    const Emit& emit) const {
  if (length == 0) return;
  emit({.source = {.row_bytes = static_cast<uint64_t>(length) * size_of(result)},
        .stored = result,
        .result = result,
        .combine = Combine::zeros});
}

void TensorSource::Node::lower_kind(const Cat& node, int64_t first, int64_t length, DType result,
                                    const Emit& emit) const {
  in_blocks(
      first, length, node.begins.back(),
      [&](int64_t from, int64_t taken) { lower_pieces(node, from, taken, result, emit); },
      [&](int64_t begin, int64_t end) { lower_blocks(node, begin, end, result, emit); });
}

void TensorSource::Node::lower_kind(const CatNarrowed& node, int64_t first, int64_t length,
                                    DType result, const Emit& emit) const {
  while (length > 0) {
    const int64_t within = first % node.length;
    const int64_t taken = std::min(node.length - within, length);
    const TensorSource& part = (*node.parts)[static_cast<size_t>(first / node.length)];
    part.node_->lower(node.start + within, taken, result, emit);
    first += taken;
    length -= taken;
  }
}

// Elements [first, first + length) row by row.
void TensorSource::Node::lower_rows(const Narrow& node, int64_t first, int64_t length, DType result,
                                    const Emit& emit) const {
  const Node& child = *node.child.node_;
  const int64_t inner = inner_numel(child.shape, node.dim + 1);
  const int64_t block = shape[node.dim] * inner;
  const int64_t child_block = child.shape[node.dim] * inner;
  while (length > 0) {
    const int64_t within = first % block;
    const int64_t taken = std::min(block - within, length);
    child.lower(first / block * child_block + node.start * inner + within, taken, result, emit);
    first += taken;
    length -= taken;
  }
}

// Rows [begin, end), together as far as the child's lie in one contiguous run.
void TensorSource::Node::lower_even_rows(const Narrow& node, int64_t begin, int64_t end,
                                         DType result, const Emit& emit) const {
  const Node& child = *node.child.node_;
  const int64_t inner = inner_numel(child.shape, node.dim + 1);
  const int64_t block = shape[node.dim] * inner;
  const int64_t child_block = child.shape[node.dim] * inner;
  std::vector<SourceRun> runs;
  RunCount held;
  held.begin_part();
  child.lower(begin * child_block, (end - begin) * child_block, result, [&](const SourceRun& run) {
    held.add(run);
    append(runs, run);
  });
  int64_t row = begin;
  int64_t reached = begin * child_block;  // the child's elements before the run
  for (const SourceRun& run : runs) {
    const auto elements =
        static_cast<int64_t>(run.rows * run.source.row_bytes / size_of(run.stored));
    const int64_t run_end = reached + elements;
    // Rows that begin before this run have a part in another one.
    while (row < end && row * child_block + node.start * inner < reached) {
      lower_rows(node, row * block, block, result, emit);
      ++row;
    }
    const int64_t first = row * child_block + node.start * inner;
    const bool plain = run.combine == Combine::none && run.rows == 1;
    if (plain && row < end && first + block <= run_end) {
      const int64_t rows = std::min(end - row, (run_end - first - block) / child_block + 1);
      const auto element = static_cast<int64_t>(size_of(run.stored));
      SourceRun columns = run;
      columns.source.offset += static_cast<uint64_t>((first - reached) * element);
      columns.source.row_bytes = static_cast<uint64_t>(block * element);
      columns.source.stride = rows == 1 ? 0 : child_block * element;
      columns.rows = static_cast<uint64_t>(rows);
      emit(columns);
      row += rows;
    }
    reached = run_end;
  }
  if (row < end) lower_rows(node, row * block, (end - row) * block, result, emit);
}

void TensorSource::Node::lower_kind(const Narrow& node, int64_t first, int64_t length, DType result,
                                    const Emit& emit) const {
  in_blocks(
      first, length, shape[node.dim] * inner_numel(shape, node.dim + 1),
      [&](int64_t from, int64_t taken) { lower_rows(node, from, taken, result, emit); },
      [&](int64_t begin, int64_t end) { lower_even_rows(node, begin, end, result, emit); });
}

void TensorSource::Node::lower_kind(const View& node, int64_t first, int64_t length, DType result,
                                    const Emit& emit) const {
  node.child.node_->lower(first, length, result, emit);
}

void TensorSource::Node::lower_kind(const Cast& node, int64_t first, int64_t length, DType result,
                                    const Emit& emit) const {
  node.child.node_->lower(first, length, result, emit);
}

// The parts may be cut differently in their files. A piece ends where any of them is cut.
void TensorSource::Node::lower_kind(const Combined& node, int64_t first, int64_t length,
                                    DType result, const Emit& emit) const {
  std::vector<RunCursor> cursors;
  RunCount held;
  for (const TensorSource& part : node.parts) {
    std::vector<SourceRun> runs;
    held.begin_part();
    part.node_->lower(first, length, dtype, [&](const SourceRun& run) {
      held.add(run);
      runs.push_back(run);
    });
    cursors.emplace_back(std::move(runs));
  }
  while (!cursors.front().done()) {
    uint64_t step = cursors.front().left_in_row();
    for (const RunCursor& cursor : cursors) step = std::min(step, cursor.left_in_row());
    SourceRun run{.source = {.row_bytes = step * size_of(dtype)},
                  .stored = dtype,
                  .result = result,
                  .combine = node.how,
                  .what = node.how == Combine::same ? &node.what : nullptr};
    for (RunCursor& cursor : cursors) {
      run.operands.push_back(cursor.piece(step));
      cursor.advance(step);
    }
    emit(run);
  }
}

// The parts may be cut and combined differently. A piece ends where any of them is cut.
void TensorSource::Node::lower_kind(const Weighted& node, int64_t first, int64_t length,
                                    DType result, const Emit& emit) const {
  std::vector<RunCursor> cursors;
  RunCount held;
  for (const TensorSource& part : node.parts) {
    std::vector<SourceRun> runs;
    held.begin_part();
    part.node_->lower(first, length, part.dtype(), [&](const SourceRun& run) {
      held.add(run);
      append(runs, run);
    });
    cursors.emplace_back(std::move(runs));
  }
  while (!cursors.front().done()) {
    uint64_t step = cursors.front().left_in_row();
    for (const RunCursor& cursor : cursors) step = std::min(step, cursor.left_in_row());
    SourceRun run{.source = {.row_bytes = step * size_of(DType::float64)},
                  .stored = DType::float64,
                  .result = result,
                  .combine = Combine::weighted};
    for (size_t i = 0; i < cursors.size(); ++i) {
      const std::vector<Rows> pieces = cursors[i].pieces(step);
      run.terms.push_back({.weight = node.weights[i],
                           .share = node.shares[i],
                           .stored = cursors[i].stored(),
                           .combine = cursors[i].combine(),
                           .operands = static_cast<uint32_t>(pieces.size()),
                           .what = cursors[i].what()});
      run.operands.insert(run.operands.end(), pieces.begin(), pieces.end());
      cursors[i].advance(step);
    }
    emit(run);
  }
}

void TensorSource::Node::lower_kind(const Updated& node, int64_t first, int64_t length,
                                    DType result, const Emit& emit) const {
  if (length == 0) return;
  emit({.source = {.offset = static_cast<uint64_t>(first),
                   .row_bytes = static_cast<uint64_t>(length) * size_of(DType::float64)},
        .stored = DType::float64,
        .result = result,
        .combine = Combine::low_rank,
        .update = node.update});
}

void TensorSource::Node::lower(int64_t first, int64_t length, DType result,
                               const Emit& emit) const {
  std::visit([&](const auto& kind) { lower_kind(kind, first, length, result, emit); }, what);
}

void TensorSource::lower(int64_t first, int64_t count, const Emit& emit) const {
  if (first < 0 || count < 0 || first > numel() || count > numel() - first) {
    throw InconsistentError({}, "a range outside the tensor");
  }
  node_->lower(first, count, dtype(), emit);
}

std::optional<StridedView> TensorSource::as_strided() const {
  if (const auto* stored = std::get_if<Node::Stored>(&node_->what)) {
    return StridedView{stored->extent, dtype(), shape(),
                       stored->strided ? stored->strided->strides : contiguous_strides(shape())};
  }
  if (node_->holds.cast || numel() == 0) return std::nullopt;
  std::optional<SourceRun> whole;
  bool one = true;
  lower([&](const SourceRun& run) {
    one = one && run.combine == Combine::none;
    if (!whole) {
      whole = run;
    } else if (whole->rows == 1 && run.rows == 1 && whole->source.is_continued_by(run.source)) {
      whole->source.row_bytes += run.source.row_bytes;
    } else {
      one = false;
    }
  });
  if (!one || whole->rows != 1) return std::nullopt;
  return StridedView{whole->source.span(1), dtype(), shape(), contiguous_strides(shape())};
}

}  // namespace dsckpt
