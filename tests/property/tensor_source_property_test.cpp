// Random tensor expressions, lowered and compared with a naive evaluation element by element.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "dsckpt/error.h"
#include "plan/tensor_source.h"
#include "support/expect_error.h"

namespace dsckpt {
namespace {

// Where an element comes from. The bytes of a file are all different in this sense, so no content
// is needed. Zeros come from nowhere: file and offset are 0 and stored is result. For a mean or
// same, file and offset are the first place's, `more` the others.
struct Origin {
  FileId file;
  uint64_t offset;
  DType stored;
  DType result;
  Combine combine = Combine::none;
  std::vector<std::pair<FileId, uint64_t>> more = {};
  std::string what = {};
  bool operator==(const Origin&) const = default;
};

// A tensor evaluated: the origin of every element, in row-major order.
struct Naive {
  DType dtype;
  Shape shape;
  std::vector<Origin> elements;
};

std::vector<Shape> all_indices(const Shape& shape) {
  std::vector<Shape> out;
  if (numel(shape) == 0) return out;
  Shape index(shape.size(), 0);
  for (;;) {
    out.push_back(index);
    size_t d = shape.size();
    while (d > 0 && ++index[d - 1] == shape[d - 1]) index[--d] = 0;
    if (d == 0) return out;
  }
}

size_t flat_index(const Shape& index, const Shape& shape) {
  int64_t flat = 0;
  for (size_t d = 0; d < shape.size(); ++d) flat = flat * shape[d] + index[d];
  return static_cast<size_t>(flat);
}

struct Pair {
  TensorSource source;
  Naive naive;
};

// The kinds of nodes that an expression may still get.
struct May {
  bool cast;
  bool combine;
  bool zeros;
};

void cast(Naive& naive, DType dtype) {
  naive.dtype = dtype;
  for (Origin& origin : naive.elements) {
    origin.result = dtype;
    if (origin.combine == Combine::zeros) origin.stored = dtype;
  }
}

class Generator {
 public:
  explicit Generator(uint64_t seed) : random_(seed) {}

  int64_t pick(int64_t low, int64_t high) {
    return std::uniform_int_distribution<int64_t>(low, high)(random_);
  }

  Pair stored(DType dtype, const Shape& shape) {
    // Strides as a permuted, padded tensor has them, at times with zeros or overlaps.
    Strides strides(shape.size());
    std::vector<size_t> order(shape.size());
    for (size_t d = 0; d < order.size(); ++d) order[d] = d;
    const int64_t kind = pick(0, 5);
    if (kind >= 3) std::shuffle(order.begin(), order.end(), random_);
    int64_t step = kind == 2 || kind == 4 ? pick(1, 3) : 1;
    for (size_t i = order.size(); i-- > 0;) {
      const size_t d = order[i];
      strides[d] = step;
      step *= std::max<int64_t>(shape[d], 1);
      if (kind == 1 || kind == 4) step += pick(0, 3);
      if (kind == 5) strides[d] = pick(0, 4);
      // Strides of dimensions without a second element mean nothing.
      if (shape[d] <= 1 && pick(0, 1) == 1) strides[d] = pick(-5, 1000);
    }
    int64_t span = 1;
    for (size_t d = 0; d < shape.size(); ++d)
      span += std::max<int64_t>(shape[d] - 1, 0) * strides[d];
    const uint64_t element = size_of(dtype);
    const FileId file = static_cast<FileId>(pick(0, 2));
    const uint64_t offset = static_cast<uint64_t>(pick(0, 1000));
    const uint64_t slack = static_cast<uint64_t>(pick(0, 3)) * element;
    Naive naive{dtype, shape, {}};
    for (const Shape& index : all_indices(shape)) {
      int64_t at = 0;
      for (size_t d = 0; d < shape.size(); ++d) at += index[d] * strides[d];
      naive.elements.push_back({file, offset + static_cast<uint64_t>(at) * element, dtype, dtype});
    }
    return {TensorSource::stored({file, offset, static_cast<uint64_t>(span) * element + slack},
                                 dtype, shape, strides),
            std::move(naive)};
  }

  Shape shape() {
    Shape out(static_cast<size_t>(pick(0, 4)));
    for (int64_t& size : out) size = pick(0, 9) == 0 ? pick(0, 1) : pick(1, 5);
    // Matrices of many rows.
    if (out.size() >= 2 && pick(0, 3) == 0) out[0] = pick(5, 25);
    return out;
  }

  // The shape of `count` elements in another way.
  Shape reshaped(int64_t count) {
    Shape out;
    int64_t left = count;
    while (left > 1 && pick(0, 3) != 0) {
      std::vector<int64_t> divisors;
      for (int64_t d = 1; d <= left; ++d) {
        if (left % d == 0) divisors.push_back(d);
      }
      out.push_back(
          divisors[static_cast<size_t>(pick(0, static_cast<int64_t>(divisors.size()) - 1))]);
      left /= out.back();
    }
    out.push_back(left);
    return out;
  }

  Pair expression(int depth) {
    return expression(depth, types()[pick_index(4)], shape(), {true, true, true});
  }

  // A matrix, or a few, that is cut along an inner dimension into slices and these into fragments.
  Pair slices() {
    Shape shape{pick(2, 30), pick(1, 9)};
    if (pick(0, 1) == 0) shape.insert(shape.begin() + pick(0, 2), pick(1, 4));
    return cat_of_slices(types()[pick_index(4)], shape, {true, true, false});
  }

 private:
  static const std::vector<DType>& types() {
    static const std::vector<DType> all{DType::float32, DType::bfloat16, DType::float64,
                                        DType::uint8};
    return all;
  }
  size_t pick_index(int64_t count) { return static_cast<size_t>(pick(0, count - 1)); }

  // A random expression of this type and shape.
  Pair expression(int depth, DType dtype, const Shape& shape, May may) {
    if (may.zeros && pick(0, 7) == 0) return zeros(dtype, shape);
    const int64_t kind = depth == 0 ? (pick(0, 3) == 0 ? 12 : 0) : pick(0, 16);
    if (kind >= 1 && kind <= 3 && !shape.empty()) return cat(depth, dtype, shape, may);
    if (kind >= 4 && kind <= 6 && !shape.empty()) return narrow(depth, dtype, shape, may);
    if (kind == 7 || kind == 8) {
      Pair child = expression(depth - 1, dtype, reshaped(numel(shape)), may);
      Pair out{child.source.view(shape), std::move(child.naive)};
      out.naive.shape = shape;
      return out;
    }
    if (kind == 9 && may.cast) {
      Pair child =
          expression(depth - 1, types()[pick_index(4)], shape, {false, may.combine, may.zeros});
      Pair out{child.source.to(dtype), std::move(child.naive)};
      cast(out.naive, dtype);
      return out;
    }
    if ((kind == 10 || kind == 11) && may.combine) return combined(depth, dtype, shape);
    if (kind == 12) {
      return pick(0, 1) == 0 ? fragments(dtype, shape) : pieces_of_ranks(dtype, shape);
    }
    if (kind >= 13 && shape.size() >= 2) return cat_of_slices(dtype, shape, may);
    return stored(dtype, shape);
  }

  // They may be cast however often.
  Pair zeros(DType dtype, const Shape& shape) {
    const Origin origin{0, 0, dtype, dtype, Combine::zeros};
    return {TensorSource::zeros(types()[pick_index(4)], shape).to(dtype),
            {dtype, shape, std::vector<Origin>(static_cast<size_t>(numel(shape)), origin)}};
  }

  // A tensor that ranks have a piece each of, all at the same place of their flat vectors.
  Pair pieces_of_ranks(DType dtype, const Shape& shape) {
    const int64_t ranks = pick(1, 4);
    const int64_t length = (numel(shape) + ranks - 1) / ranks + pick(0, 1);
    const int64_t start = pick(0, 3);
    std::vector<TensorSource> flat;
    std::vector<Origin> elements;
    for (int64_t rank = 0; rank < ranks; ++rank) {
      const Shape size{start + length + pick(0, 2)};
      const FileId file = static_cast<FileId>(pick(0, 2));
      const uint64_t offset = static_cast<uint64_t>(pick(0, 1000));
      const uint64_t bytes = static_cast<uint64_t>(size[0]) * size_of(dtype);
      flat.push_back(TensorSource::stored({file, offset, bytes}, dtype, size));
      for (int64_t i = start; i < start + length; ++i) {
        elements.push_back(
            {file, offset + static_cast<uint64_t>(i) * size_of(dtype), dtype, dtype});
      }
    }
    const auto shared = std::make_shared<const std::vector<TensorSource>>(std::move(flat));
    return {
        TensorSource::cat_narrowed(shared, start, length).narrow(0, 0, numel(shape)).view(shape),
        {dtype, shape, {elements.begin(), elements.begin() + numel(shape)}}};
  }

  // A tensor of a flat vector that is cut at arbitrary places into the files.
  Pair fragments(DType dtype, const Shape& shape) {
    const int64_t before = pick(0, 3);
    const int64_t flat = before + numel(shape) + pick(0, 3);
    std::vector<TensorSource> sources;
    std::vector<Origin> elements;
    for (int64_t left = flat; left > 0 || sources.empty();) {
      const Shape length{pick(0, 2) == 0 ? left : pick(0, left)};
      const FileId file = static_cast<FileId>(pick(0, 2));
      const uint64_t offset = static_cast<uint64_t>(pick(0, 1000));
      const uint64_t bytes = static_cast<uint64_t>(length[0]) * size_of(dtype);
      sources.push_back(TensorSource::stored({file, offset, bytes}, dtype, length));
      for (uint64_t at = 0; at < bytes; at += size_of(dtype)) {
        elements.push_back({file, offset + at, dtype, dtype});
      }
      left -= length[0];
    }
    const auto begin = elements.begin() + before;
    return {TensorSource::cat(0, std::move(sources)).narrow(0, before, numel(shape)).view(shape),
            {dtype, shape, {begin, begin + numel(shape)}}};
  }

  // A cut along an inner dimension, as tensor parallelism makes it: every slice in fragments, at
  // times in rows that lie apart, and at times cast.
  Pair cat_of_slices(DType dtype, const Shape& shape, May may) {
    const bool casts = may.cast && pick(0, 3) == 0;
    const DType stored_as = casts ? types()[pick_index(4)] : dtype;
    const size_t dim = 1 + pick_index(static_cast<int64_t>(shape.size()) - 1);
    const auto slice = [&](const Shape& part) {
      return pick(0, 3) == 0 ? stored(stored_as, part) : fragments(stored_as, part);
    };
    Pair out = cat_of(dim, stored_as, shape, slice);
    if (!casts) return out;
    cast(out.naive, dtype);
    return {out.source.to(dtype), std::move(out.naive)};
  }

  // A mean, or tensors that are said to be the same.
  Pair combined(int depth, DType dtype, const Shape& shape) {
    const bool mean = dtype == DType::float32 && pick(0, 1) == 1;
    std::vector<TensorSource> sources;
    std::vector<Naive> parts;
    for (int64_t count = pick(1, 4); count > 0; --count) {
      Pair part = expression(depth - 1, dtype, shape, {false, false, false});
      sources.push_back(part.source);
      parts.push_back(std::move(part.naive));
    }
    const std::string what = std::string(1, static_cast<char>('a' + pick(0, 2)));
    Naive naive = parts[0];
    for (size_t i = 0; i < naive.elements.size() && (mean || parts.size() > 1); ++i) {
      Origin& origin = naive.elements[i];
      origin.combine = mean ? Combine::mean : Combine::same;
      if (!mean) origin.what = what;
      for (size_t k = 1; k < parts.size(); ++k) {
        origin.more.emplace_back(parts[k].elements[i].file, parts[k].elements[i].offset);
      }
    }
    return {mean ? TensorSource::mean(std::move(sources))
                 : TensorSource::same(std::move(sources), what),
            std::move(naive)};
  }

  Pair cat(int depth, DType dtype, const Shape& shape, May may) {
    const size_t dim = pick_index(static_cast<int64_t>(shape.size()));
    return cat_of(dim, dtype, shape,
                  [&](const Shape& part) { return expression(depth - 1, dtype, part, may); });
  }

  template <typename MakePart>
  Pair cat_of(size_t dim, DType dtype, const Shape& shape, const MakePart& make_part) {
    std::vector<int64_t> sizes;
    for (int64_t left = shape[dim]; left > 0 || sizes.empty();) {
      sizes.push_back(pick(0, left));
      left -= sizes.back();
    }
    if (pick(0, 3) == 0) sizes.push_back(0);
    std::vector<TensorSource> sources;
    Naive naive{dtype, shape, std::vector<Origin>(static_cast<size_t>(numel(shape)))};
    int64_t begin = 0;
    for (const int64_t size : sizes) {
      Shape part_shape = shape;
      part_shape[dim] = size;
      Pair part = make_part(part_shape);
      sources.push_back(part.source);
      for (Shape index : all_indices(part_shape)) {
        const Origin origin = part.naive.elements[flat_index(index, part_shape)];
        index[dim] += begin;
        naive.elements[flat_index(index, shape)] = origin;
      }
      begin += size;
    }
    return {TensorSource::cat(static_cast<int64_t>(dim), std::move(sources)), std::move(naive)};
  }

  Pair narrow(int depth, DType dtype, const Shape& shape, May may) {
    const size_t dim = pick_index(static_cast<int64_t>(shape.size()));
    const int64_t before = pick(0, 3);
    Shape larger = shape;
    larger[dim] += before + pick(0, 3);
    Pair child = expression(depth - 1, dtype, larger, may);
    Naive naive{dtype, shape, {}};
    for (Shape index : all_indices(shape)) {
      index[dim] += before;
      naive.elements.push_back(child.naive.elements[flat_index(index, larger)]);
    }
    return {child.source.narrow(static_cast<int64_t>(dim), before, shape[dim]), std::move(naive)};
  }

  std::mt19937_64 random_;
};

std::vector<Origin> lowered(const TensorSource& source, int64_t first, int64_t count) {
  std::vector<Origin> out;
  source.lower(first, count, [&](const SourceRun& run) {
    EXPECT_GT(run.rows, 0u);
    EXPECT_GT(run.source.row_bytes, 0u);
    EXPECT_EQ(run.source.row_bytes % size_of(run.stored), 0u);
    EXPECT_EQ(run.what != nullptr, run.combine == Combine::same);
    const auto piece = [&](FileId file, uint64_t start, uint64_t size) {
      for (uint64_t at = 0; at < size; at += size_of(run.stored)) {
        out.push_back({file, start + at, run.stored, run.result});
      }
    };
    if (run.combine == Combine::zeros) {
      EXPECT_EQ(run.rows, 1u);
      EXPECT_EQ(run.stored, run.result);
      EXPECT_TRUE(run.operands.empty());
      const Origin origin{0, 0, run.stored, run.result, run.combine};
      out.insert(out.end(), run.numel(), origin);
      return;
    }
    if (run.combine == Combine::interleave) {
      EXPECT_GE(run.operands.size(), 2u);
      EXPECT_GE(run.rows, 2u);
      uint64_t row_bytes = 0;
      for (const Rows& column : run.operands) row_bytes += column.row_bytes;
      EXPECT_EQ(run.source.row_bytes, row_bytes);
      for (uint64_t row = 0; row < run.rows; ++row) {
        for (const Rows& column : run.operands) {
          piece(column.file, column.offset + row * static_cast<uint64_t>(column.stride),
                column.row_bytes);
        }
      }
      return;
    }
    if (run.combine == Combine::none) {
      EXPECT_TRUE(run.operands.empty());
      for (uint64_t row = 0; row < run.rows; ++row) {
        piece(run.source.file, run.source.offset + row * static_cast<uint64_t>(run.source.stride),
              run.source.row_bytes);
      }
      return;
    }
    EXPECT_EQ(run.rows, 1u);
    ASSERT_FALSE(run.operands.empty());
    for (const Rows& operand : run.operands) EXPECT_EQ(operand.row_bytes, run.source.row_bytes);
    const size_t first_of_row = out.size();
    piece(run.operands[0].file, run.operands[0].offset, run.source.row_bytes);
    for (size_t i = first_of_row; i < out.size(); ++i) {
      out[i].combine = run.combine;
      out[i].what = run.what != nullptr ? *run.what : "";
      for (size_t k = 1; k < run.operands.size(); ++k) {
        const Rows& other = run.operands[k];
        out[i].more.emplace_back(other.file,
                                 other.offset + (i - first_of_row) * size_of(run.stored));
      }
    }
  });
  return out;
}

// How many runs `source` is lowered to, and how many of them interleave.
struct Runs {
  size_t all = 0;
  size_t interleaved = 0;
};

Runs count_runs(const TensorSource& source) {
  Runs runs;
  source.lower([&](const SourceRun& run) {
    ++runs.all;
    runs.interleaved += run.combine == Combine::interleave;
  });
  return runs;
}

TEST(TensorSourceProperty, LowersToWhatNaiveEvaluationGives) {
  size_t with_elements = 0;
  size_t means = 0;
  size_t sames = 0;
  size_t interleaved = 0;
  size_t zeros = 0;
  size_t partly_zeros = 0;
  for (uint64_t seed = 0; seed < 6000; ++seed) {
    SCOPED_TRACE(seed);
    Generator generator(seed);
    const auto [source, naive] = generator.expression(4);
    ASSERT_EQ(source.dtype(), naive.dtype);
    ASSERT_EQ(source.shape(), naive.shape);
    ASSERT_EQ(source.numel(), numel(naive.shape));
    ASSERT_EQ(lowered(source, 0, source.numel()), naive.elements);
    with_elements += naive.elements.size() > 1;
    interleaved += count_runs(source).interleaved > 0;
    const auto is_zero = [](const Origin& origin) { return origin.combine == Combine::zeros; };
    const auto zero_count = std::count_if(naive.elements.begin(), naive.elements.end(), is_zero);
    zeros += zero_count > 0;
    partly_zeros += zero_count > 0 && zero_count < source.numel();
    for (const Combine how : {Combine::mean, Combine::same}) {
      const auto of_kind = [how](const Origin& origin) { return origin.combine == how; };
      size_t& count = how == Combine::mean ? means : sames;
      count += std::any_of(naive.elements.begin(), naive.elements.end(), of_kind);
    }
  }
  EXPECT_GT(with_elements, 2000u);
  EXPECT_GT(means, 100u);
  EXPECT_GT(sames, 300u);
  EXPECT_GT(interleaved, 300u);
  EXPECT_GT(zeros, 1000u);
  EXPECT_GT(partly_zeros, 200u);
}

TEST(TensorSourceProperty, LowersAnyRange) {
  for (uint64_t seed = 0; seed < 1000; ++seed) {
    SCOPED_TRACE(seed);
    Generator generator(seed);
    const auto [source, naive] = generator.expression(3);
    for (int i = 0; i < 10; ++i) {
      const int64_t first = generator.pick(0, source.numel());
      const int64_t count = generator.pick(0, source.numel() - first);
      const auto begin = naive.elements.begin() + first;
      ASSERT_EQ(lowered(source, first, count), std::vector<Origin>(begin, begin + count))
          << first << " " << count;
    }
  }
}

TEST(TensorSourceProperty, LowersAnyRangeOfSlicesInFragments) {
  size_t interleaved = 0;
  size_t runs = 0;
  size_t rows = 0;
  for (uint64_t seed = 0; seed < 3000; ++seed) {
    SCOPED_TRACE(seed);
    Generator generator(seed);
    const auto [source, naive] = generator.slices();
    ASSERT_EQ(lowered(source, 0, source.numel()), naive.elements);
    for (int i = 0; i < 5; ++i) {
      const int64_t first = generator.pick(0, source.numel());
      const int64_t count = generator.pick(0, source.numel() - first);
      const auto begin = naive.elements.begin() + first;
      ASSERT_EQ(lowered(source, first, count), std::vector<Origin>(begin, begin + count))
          << first << " " << count;
    }
    const Runs counted = count_runs(source);
    interleaved += counted.interleaved > 0;
    runs += counted.all;
    rows += static_cast<size_t>(source.numel() / source.shape().back());
  }
  EXPECT_GT(interleaved, 1200u);
  EXPECT_LT(runs, rows);
}

TEST(TensorSourceProperty, SeesItselfAsStridedOnlyAsItIs) {
  size_t seen = 0;
  for (uint64_t seed = 0; seed < 4000; ++seed) {
    SCOPED_TRACE(seed);
    Generator generator(seed);
    const auto [source, naive] = generator.expression(2);
    const auto view = source.as_strided();
    if (!view) continue;
    ASSERT_EQ(view->dtype, naive.dtype);
    ASSERT_EQ(view->shape, naive.shape);
    ASSERT_EQ(view->strides.size(), naive.shape.size());
    if (naive.elements.empty()) continue;
    ++seen;
    const uint64_t element = size_of(naive.dtype);
    uint64_t lowest = ~uint64_t{0};
    uint64_t highest = 0;
    for (const Shape& index : all_indices(naive.shape)) {
      int64_t at = 0;
      for (size_t d = 0; d < index.size(); ++d) at += index[d] * view->strides[d];
      const uint64_t offset = view->extent.offset + static_cast<uint64_t>(at) * element;
      const Origin origin{view->extent.file, offset, view->dtype, view->dtype};
      ASSERT_EQ(origin, naive.elements[flat_index(index, naive.shape)]);
      lowest = std::min(lowest, offset);
      highest = std::max(highest, offset + element);
    }
    ASSERT_EQ(view->extent.offset, lowest);
    ASSERT_EQ(view->extent.end(), highest);
  }
  EXPECT_GT(seen, 1000u);
}

TEST(TensorSource, IsStridedWhereAPieceOfAFlatGroupIsOneRun) {
  const auto flat = TensorSource::stored({3, 64, 400}, DType::float32, {100});
  const auto view = flat.narrow(0, 10, 12).view({3, 4}).as_strided();
  ASSERT_TRUE(view);
  EXPECT_EQ(view->extent, (Extent{3, 104, 48}));
  EXPECT_EQ(view->strides, (Strides{4, 1}));
  EXPECT_FALSE(flat.to(DType::bfloat16).as_strided());
  EXPECT_TRUE(TensorSource::cat(0, {flat.narrow(0, 0, 50), flat.narrow(0, 50, 50)}).as_strided());
  EXPECT_FALSE(TensorSource::cat(0, {flat.narrow(0, 50, 50), flat.narrow(0, 0, 50)}).as_strided());
}

TEST(TensorSource, IsNotStridedWhereSeveralTensorsMakeOne) {
  const auto a = TensorSource::stored({3, 64, 400}, DType::float32, {100});
  const auto b = TensorSource::stored({4, 0, 400}, DType::float32, {100});
  EXPECT_FALSE(TensorSource::mean({a}).as_strided());
  EXPECT_FALSE(TensorSource::mean({a, b}).as_strided());
  EXPECT_FALSE(TensorSource::same({a, a}, "it").as_strided());
  EXPECT_FALSE(TensorSource::same({a, b}, "it").narrow(0, 1, 2).as_strided());
  EXPECT_TRUE(TensorSource::same({a}, "it").as_strided());
  const auto beside = TensorSource::cat(0, {TensorSource::mean({a, b}), b});
  EXPECT_FALSE(beside.as_strided());
  EXPECT_FALSE(beside.narrow(0, 90, 20).as_strided());
  ASSERT_TRUE(beside.narrow(0, 150, 20).as_strided());
  EXPECT_EQ(beside.narrow(0, 150, 20).as_strided()->extent, (Extent{4, 200, 80}));
}

TEST(TensorSource, ZerosStayZerosWhateverIsDoneWithThem) {
  using enum DType;
  const auto zeros = TensorSource::zeros(float32, {4, 6});
  EXPECT_EQ(zeros.dtype(), float32);
  EXPECT_EQ(zeros.shape(), (Shape{4, 6}));
  const auto some = zeros.to(bfloat16).narrow(1, 2, 3).view({12}).to(float64).to(float16);
  EXPECT_EQ(some.dtype(), float16);
  EXPECT_EQ(some.shape(), Shape{12});
  const auto a = TensorSource::stored({0, 0, 24}, float16, {12}).to(float32);
  for (const TensorSource& one : {zeros, some, TensorSource::cat(0, {some, some}),
                                  TensorSource::cat(0, {a, zeros.flatten()}).narrow(0, 12, 24)}) {
    EXPECT_FALSE(one.as_strided());
    one.lower([&](const SourceRun& run) {
      EXPECT_EQ(run.combine, Combine::zeros);
      EXPECT_EQ(run.stored, one.dtype());
      EXPECT_EQ(run.result, one.dtype());
    });
  }
  EXPECT_EQ(count_runs(some).all, 1u);
  EXPECT_EQ(count_runs(TensorSource::zeros(float32, {3, 0})).all, 0u);
  EXPECT_TRUE(TensorSource::cat(0, {a, zeros.flatten()}).narrow(0, 0, 12).numel() == 12);
  EXPECT_ERROR(TensorSource::zeros(float64, {int64_t{1} << 62}), CorruptError, "overflows");
}

TEST(TensorSource, RefusesToCombineWhatCannotBe) {
  using enum DType;
  const auto a = TensorSource::stored({0, 0, 24}, float32, {2, 3});
  const auto half = TensorSource::stored({0, 0, 12}, float16, {2, 3});
  const auto mean = TensorSource::mean({a, a});
  const auto same = TensorSource::same({half, half}, "it");
  EXPECT_ERROR(TensorSource::mean({}), InconsistentError, "nothing to take the mean of");
  EXPECT_ERROR(TensorSource::same({}, "it"), InconsistentError, "nothing to compare");
  EXPECT_ERROR(TensorSource::mean({half}), UnsupportedError, "the mean of float16");
  EXPECT_ERROR(TensorSource::mean({a, a.flatten()}), InconsistentError,
               "cannot combine float32[6] and float32[2, 3]");
  EXPECT_ERROR(TensorSource::same({a, half}, "it"), InconsistentError, "cannot combine float16");
  EXPECT_ERROR(TensorSource::mean({half.to(float32)}), UnsupportedError, "that are cast");
  EXPECT_ERROR(TensorSource::same({half, a.to(float16)}, "it"), UnsupportedError, "that are cast");
  EXPECT_ERROR(TensorSource::mean({mean}), InconsistentError, "combined again");
  EXPECT_ERROR(TensorSource::mean({TensorSource::cat(0, {a, mean})}), InconsistentError,
               "combined again");
  EXPECT_ERROR(TensorSource::same({same.narrow(0, 0, 1), half.narrow(0, 0, 1)}, "it"),
               InconsistentError, "combined again");
  const auto zeros = TensorSource::zeros(float32, {2, 3});
  EXPECT_ERROR(TensorSource::mean({a, zeros}), UnsupportedError, "that lie in no file");
  EXPECT_ERROR(TensorSource::same({zeros, TensorSource::cat(0, {a, zeros}).narrow(0, 0, 2)}, "it"),
               UnsupportedError, "that lie in no file");
  EXPECT_ERROR(mean.to(float16).to(float32), InconsistentError, "cast once");
  EXPECT_EQ(mean.to(float16).dtype(), float16);
  EXPECT_NO_THROW(TensorSource::same({same}, "that"));
}

TEST(TensorSource, LowersAFragmentOfATensorParallelSliceToAFewItems) {
  // Column-parallel rows of 30 out of 40, narrowed to an odd range.
  const auto slice = TensorSource::stored({0, 0, 4000}, DType::uint8, {100, 40}).narrow(1, 5, 30);
  int runs = 0;
  slice.lower([&](const SourceRun& run) { runs += run.rows > 0; });
  EXPECT_LE(runs, 100);
  const auto strided = TensorSource::stored({0, 5, 3990}, DType::uint8, {100, 30}, {40, 1});
  runs = 0;
  strided.lower(17, 2000, [&](const SourceRun& run) { runs += run.rows > 0; });
  EXPECT_EQ(runs, 3);
}

// `ranks` slices of 14336 rows of 3584 float32 elements, each in two files; rank i's first file
// ends `ends[i]` elements into it.
TensorSource row_parallel_weight(const std::vector<int64_t>& ends) {
  constexpr int64_t kSlice = 14336 * 3584;
  std::vector<TensorSource> slices;
  for (size_t i = 0; i < ends.size(); ++i) {
    const auto piece = [&](FileId file, int64_t count) {
      const auto bytes = static_cast<uint64_t>(count) * 4;
      return TensorSource::stored({file, 1000 * i, bytes}, DType::float32, {count});
    };
    const auto file = static_cast<FileId>(2 * i);
    slices.push_back(TensorSource::cat(0, {piece(file, ends[i]), piece(file + 1, kSlice - ends[i])})
                         .view({14336, 3584}));
  }
  return TensorSource::cat(1, std::move(slices));
}

TEST(TensorSource, LowersARowParallelWeightToAFewRuns) {
  // One row that straddles the cut: two pieces of every rank. On both sides of it a block of rows.
  const int64_t cut = 5000 * 3584 + 17;
  const Runs alike = count_runs(row_parallel_weight({cut, cut, cut, cut}));
  EXPECT_EQ(alike.interleaved, 2u);
  EXPECT_EQ(alike.all, 2u + 8);
  // Cuts in rows of their own: four such rows, each with five pieces, and five blocks.
  const Runs apart =
      count_runs(row_parallel_weight({cut, cut + 3584 * 10, cut + 3584 * 20, cut + 3584 * 100}));
  EXPECT_EQ(apart.interleaved, 5u);
  EXPECT_EQ(apart.all, 5u + 4 * 5);
  // Cuts between rows.
  EXPECT_EQ(count_runs(row_parallel_weight({3584, 7168, 7168, 7168})).all, 4u + 4 + 1);
  const TensorSource weight = row_parallel_weight({cut, cut, cut, cut});
  size_t runs = 0;
  weight.to(DType::bfloat16)
      .view({14336 * 4, 3584})
      .lower(3584 * 5 + 3, 3584 * 1000, [&](const SourceRun&) { ++runs; });
  EXPECT_EQ(runs, 3u + 1 + 2);
}

TEST(TensorSource, InterleavesRowsThatLieApartAsTheyAre) {
  const auto matrix = [](FileId file) {
    return TensorSource::stored({file, 100, 4000}, DType::float32, {100, 10});
  };
  const auto left = TensorSource::stored({0, 100, 3984}, DType::float32, {100, 6}, {10, 1});
  const auto right = TensorSource::stored({1, 124, 3976}, DType::float32, {100, 4}, {10, 1});
  std::vector<SourceRun> runs;
  TensorSource::cat(1, {left, matrix(2), right}).lower([&](const SourceRun& run) {
    runs.push_back(run);
  });
  ASSERT_EQ(runs.size(), 1u);
  EXPECT_EQ(runs[0].combine, Combine::interleave);
  EXPECT_EQ(runs[0].rows, 100u);
  EXPECT_EQ(runs[0].source.row_bytes, 80u);
  EXPECT_EQ(runs[0].operands,
            (std::vector<Rows>{{0, 100, 24, 40}, {2, 100, 40, 40}, {1, 124, 16, 40}}));
}

TEST(TensorSource, JoinsColumnsThatWereOneMatrix) {
  const auto left = TensorSource::stored({0, 100, 3984}, DType::float32, {100, 6}, {10, 1});
  const auto right = TensorSource::stored({0, 124, 3976}, DType::float32, {100, 4}, {10, 1});
  const auto whole = TensorSource::cat(1, {left, right}).as_strided();
  ASSERT_TRUE(whole);
  EXPECT_EQ(whole->extent, (Extent{0, 100, 4000}));
  const auto some = TensorSource::stored({0, 124, 3968}, DType::float32, {100, 2}, {10, 1});
  EXPECT_EQ(count_runs(TensorSource::cat(1, {left, some})).all, 1u);
  EXPECT_FALSE(TensorSource::cat(1, {right, left}).as_strided());
}

TEST(TensorSource, RefusesWhatDoesNotFit) {
  using enum DType;
  const auto t = TensorSource::stored({0, 0, 24}, float32, {2, 3});
  EXPECT_ERROR(TensorSource::stored({0, 0, 20}, float32, {2, 3}, {3, 1}), CorruptError,
               "needs 24 bytes, its storage has 20");
  EXPECT_ERROR(TensorSource::stored({0, 0, 25}, float32, {2, 3}), CorruptError, "not 25");
  EXPECT_ERROR(TensorSource::stored({0, 0, 24}, float32, {2, 3}, {3}), CorruptError, "1 stride");
  EXPECT_ERROR(TensorSource::stored({0, 0, 24}, float32, {2, 3}, {-3, 1}), CorruptError,
               "negative stride");
  EXPECT_ERROR(t.narrow(2, 0, 1), InconsistentError, "dimension 2");
  EXPECT_ERROR(t.narrow(-1, 0, 1), InconsistentError, "dimension -1");
  EXPECT_ERROR(t.narrow(1, 2, 2), InconsistentError, "of 3");
  EXPECT_ERROR(t.narrow(1, -1, 1), InconsistentError, "of 3");
  EXPECT_ERROR(t.narrow(1, 1, INT64_MAX), InconsistentError, "of 3");
  EXPECT_ERROR(t.view({7}), InconsistentError, "6 elements viewed as shape [7]");
  EXPECT_ERROR(TensorSource::cat(0, {}), InconsistentError, "nothing to concatenate");
  EXPECT_ERROR(TensorSource::cat(0, {t, t.narrow(1, 0, 2)}), InconsistentError,
               "cannot concatenate");
  EXPECT_ERROR(TensorSource::cat(0, {t, t.to(bfloat16)}), InconsistentError, "bfloat16");
  EXPECT_ERROR(TensorSource::cat(0, {t, t.flatten()}), InconsistentError, "cannot concatenate");
  const auto parts = [](std::vector<TensorSource> all) {
    return std::make_shared<const std::vector<TensorSource>>(std::move(all));
  };
  const auto flat = t.flatten();
  EXPECT_ERROR(TensorSource::cat_narrowed(parts({}), 0, 1), InconsistentError,
               "nothing to concatenate");
  EXPECT_ERROR(TensorSource::cat_narrowed(parts({flat, t}), 0, 1), InconsistentError,
               "cannot concatenate");
  EXPECT_ERROR(TensorSource::cat_narrowed(parts({flat, flat.to(bfloat16)}), 0, 1),
               InconsistentError, "bfloat16");
  EXPECT_ERROR(TensorSource::cat_narrowed(parts({flat, flat.narrow(0, 0, 5)}), 2, 4),
               InconsistentError, "of 5");
  EXPECT_ERROR(t.to(bfloat16).to(float32), InconsistentError, "cast once");
  EXPECT_ERROR(t.lower(5, 2, [](const SourceRun&) {}), InconsistentError, "outside the tensor");
  EXPECT_ERROR(t.lower(-1, 2, [](const SourceRun&) {}), InconsistentError, "outside the tensor");
}

TEST(TensorSource, SurvivesShapesAndStridesMeantToOverflow) {
  using enum DType;
  const int64_t huge = int64_t{1} << 62;
  EXPECT_ERROR(TensorSource::stored({0, 0, 8}, float64, {2}, {huge}), CorruptError, "overflows");
  EXPECT_ERROR(TensorSource::stored({0, 0, 8}, float32, {huge, 2}, {1, 1}), CorruptError, "");
  EXPECT_ERROR(TensorSource::stored({0, 0, ~uint64_t{0}}, uint8, {2, 3}, {huge, 1}), CorruptError,
               "beyond any file");
  EXPECT_ERROR(TensorSource::stored({0, ~uint64_t{0} - 3, 8}, float32, {2}), CorruptError, "");
  const auto empty = TensorSource::stored({0, 0, 0}, uint8, {huge, 0});
  EXPECT_ERROR(TensorSource::cat(0, {empty, empty, empty}), CorruptError, "");
}

}  // namespace
}  // namespace dsckpt
