// AffineMap and AffineAssembly against DeepSpeed's affine.py and autoep_affine.py. Maps inside
// universal_checkpoint_info are tested in universal_info_test.cpp.
#include "checkpoint/affine_map.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <ctime>
#include <numeric>
#include <random>

#include "support/tp_rule_tools.h"

namespace dsckpt {
namespace {

using test::expect_error;
using test::SampleSlice;
using test::SliceFiles;

TEST(AffineMap, ExpertPlacementsLowerToDeepSpeedsMaps) {
  for (const test::PlacementSample& sample : test::tp_rule_samples().placements) {
    SCOPED_TRACE(sample.placement);
    const auto placement = pickle::Document::parse(as_byte_span(sample.placement));
    const auto written = pickle::Document::parse(as_byte_span(sample.map));
    const std::vector<SampleSlice> slices = test::parse_slices(sample.slices);
    const test::SampleTensor merged = test::parse_merged(sample.merged);
    const AffineMap map = AffineMap::from_expert_placement(placement.root(), merged.shape, {});
    EXPECT_EQ(map, AffineMap::read(written.root(), {}));

    SliceFiles files;
    const AffineAssembly assembly(map);
    EXPECT_EQ(assembly.shard_shapes(), test::shapes_of(slices));
    EXPECT_EQ(files.read(assembly.merge(files.sources(slices), "w on")), merged);
  }
}

TEST(AffineMap, RefusesExpertPlacementsAsDeepSpeedDoes) {
  for (const test::BadSample& sample : test::tp_rule_samples().bad_placements) {
    SCOPED_TRACE(sample.python);
    const auto placement = pickle::Document::parse(as_byte_span(sample.pickle));
    expect_error(sample.error, sample.error_text, [&] {
      AffineMap::from_expert_placement(placement.root(), test::parse_shape(sample.shape),
                                       {.member = "placement"});
    });
  }
}

TEST(AffineMap, ExpertsThatTwoRanksHoldAreCompared) {
  // The third sample: experts [0, 1, 2], [2, 3, 4], [2].
  const test::PlacementSample& sample = test::tp_rule_samples().placements[2];
  const auto placement = pickle::Document::parse(as_byte_span(sample.placement));
  const AffineAssembly assembly(AffineMap::from_expert_placement(placement.root(), {5, 2}, {}));
  std::vector<SampleSlice> slices = test::parse_slices(sample.slices);
  ASSERT_EQ(slices[2].numbers.size(), 2u);
  ++slices[2].numbers[1];
  SliceFiles files;
  expect_error("foreign", "w on expert-parallel ranks 0, 1 and 2",
               [&] { files.read(assembly.merge(files.sources(slices), "w on expert-parallel")); });
}

TEST(AffineAssembly, RefusesMapsThatContradictThemselvesOrAreNoBoxes) {
  for (const test::BadSample& sample : test::tp_rule_samples().bad_assemblies) {
    SCOPED_TRACE(sample.python);
    const auto entry = pickle::Document::parse(as_byte_span(sample.pickle));
    const AffineMap map = AffineMap::read(entry.root(), {});
    expect_error(sample.error, sample.error_text, [&] { AffineAssembly{map}; });
  }
}

std::vector<AffineMap::Rank> one_rank(Shape shape, std::vector<AffinePiece> pieces) {
  return {{std::move(shape), std::move(pieces)}};
}

TEST(AffineAssembly, RefusesShardsOfOtherShapes) {
  AffineMap map;
  map.logical_shape = {2, 3};
  map.ranks = one_rank({2, 3}, {{{2, 3}, 0, {3, 1}, 0, {3, 1}, {0}, 1}});
  const AffineAssembly assembly(map);
  SliceFiles files;
  const SampleSlice fits{{2, 3}, {1, 2, 3, 4, 5, 6}};
  EXPECT_EQ(assembly.merge(files.sources({fits}), "").shape(), (Shape{2, 3}));
  expect_error("InconsistentError", "different shards", [&] {
    assembly.merge(files.sources({{{3, 2}, fits.numbers}}), "");
  });
  expect_error("InconsistentError", "different shards", [&] {
    assembly.merge(files.sources({fits, fits}), "");
  });
}

TEST(AffineAssembly, TensorsWithoutElementsComeFromShardsWithoutElements) {
  AffineMap map;
  map.logical_shape = {0, 3};
  std::vector<AffineMap::Rank> ranks = one_rank({0, 3}, {});
  ranks.push_back(one_rank({0}, {{{0, 3}, 0, {3, 1}, 0, {3, 1}, {1}, 1}}).front());
  map.ranks = std::move(ranks);
  SliceFiles files;
  const TensorSource merged =
      AffineAssembly(map).merge(files.sources({{{0, 3}, {}}, {{0}, {}}}), "");
  EXPECT_EQ(files.read(merged), (test::SampleTensor{{0, 3}, {}}));

  AffineMap none;
  none.logical_shape = {1};
  expect_error("CorruptError", "without ranks", [&] { AffineAssembly{none}; });
}

// A grid of `rows` x `columns` boxes of random sizes, dealt out to two ranks as rows of their own.
AffineMap dealt_grid(int64_t rows, int64_t columns, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<int64_t> heights, widths;
  for (int64_t i = 0; i < rows; ++i) heights.push_back(static_cast<int64_t>(random() % 3) + 1);
  for (int64_t i = 0; i < columns; ++i) widths.push_back(static_cast<int64_t>(random() % 3) + 1);
  const int64_t width = std::accumulate(widths.begin(), widths.end(), int64_t{0});
  AffineMap map;
  map.logical_shape = {std::accumulate(heights.begin(), heights.end(), int64_t{0}), width};
  std::vector<Shape> shapes(2, Shape{0});
  std::vector<std::vector<AffinePiece>> pieces(2);
  int64_t top = 0;
  for (const int64_t height : heights) {
    int64_t left = 0;
    for (const int64_t across : widths) {
      const size_t owner = random() % 2;
      // A shard is a vector that has the boxes' rows one after the other, a row a piece.
      for (int64_t row = top; row < top + height; ++row) {
        pieces[owner].push_back({{across},
                                 row * width + left,
                                 {1},
                                 shapes[owner][0],
                                 {1},
                                 {static_cast<int64_t>(owner)},
                                 1});
        shapes[owner][0] += across;
      }
      left += across;
    }
    top += height;
  }
  std::vector<AffineMap::Rank> ranks;
  for (size_t i = 0; i < 2; ++i) {
    std::shuffle(pieces[i].begin(), pieces[i].end(), random);
    ranks.push_back({shapes[i], std::move(pieces[i])});
  }
  map.ranks = std::move(ranks);
  return map;
}

TEST(AffineAssembly, PutsTogetherManyPiecesInAnyOrder) {
  const AffineMap map = dealt_grid(8, 9, 1);
  // Element k of the tensor is the number k; a shard has it where its piece says.
  std::vector<SampleSlice> slices;
  for (const AffineMap::Rank& rank : map.ranks) {
    SampleSlice slice{rank.shard_shape,
                      std::vector<uint16_t>(static_cast<size_t>(rank.shard_shape[0]))};
    for (const AffinePiece& piece : rank.pieces) {
      for (int64_t i = 0; i < piece.shape[0]; ++i) {
        slice.numbers[static_cast<size_t>(piece.dest_offset + i)] =
            static_cast<uint16_t>(piece.source_offset + i);
      }
    }
    slices.push_back(std::move(slice));
  }
  SliceFiles files;
  std::vector<uint32_t> expected;
  for (int64_t i = 0; i < numel(map.logical_shape); ++i) {
    expected.push_back(std::bit_cast<uint32_t>(static_cast<float>(i) / 7.0F));
  }
  EXPECT_EQ(files.read(AffineAssembly(map).merge(files.sources(slices), "")),
            (test::SampleTensor{map.logical_shape, expected}));
}

TEST(AffineAssembly, TenThousandPiecesTakeNoTimeToSpeakOf) {
  const AffineMap map = dealt_grid(50, 100, 2);
  ASSERT_GE(map.ranks[0].pieces.size() + map.ranks[1].pieces.size(), 9000u);
  const std::clock_t begin = std::clock();
  const AffineAssembly assembly(map);
  // Milliseconds of processor time, whatever else runs. A comparison of all pairs takes a
  // hundred times as long under the sanitizers.
  EXPECT_LT((std::clock() - begin) / CLOCKS_PER_SEC, 5);
  EXPECT_EQ(assembly.shape(), map.logical_shape);
}

TEST(AffineAssembly, RefusesNestsOfCutsThatAreTooDeep) {
  // A row off the top, a column off the left, a row off the top ... of an n x n square.
  constexpr int64_t kSide = 60;
  AffineMap map;
  map.logical_shape = {kSide, kSide};
  int64_t offset = 0;
  std::vector<AffinePiece> pieces;
  const auto add = [&](int64_t row, int64_t column, int64_t rows, int64_t columns) {
    pieces.push_back({{rows, columns},
                      row * kSide + column,
                      {kSide, 1},
                      row * kSide + column,
                      {kSide, 1},
                      {0},
                      1});
    offset += rows * columns;
  };
  for (int64_t i = 0; i < kSide; ++i) {
    add(i, i, 1, kSide - i);
    if (i + 1 < kSide) add(i + 1, i, kSide - i - 1, 1);
  }
  ASSERT_EQ(offset, kSide * kSide);
  map.ranks = one_rank({kSide, kSide}, std::move(pieces));
  expect_error("UnsupportedError", "nested too deeply", [&] { AffineAssembly{map}; });
}

}  // namespace
}  // namespace dsckpt
