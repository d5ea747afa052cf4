#include "base/merged_tile.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <random>
#include <vector>

#include "base/dtype_names.h"
#include "base/kernels.h"

namespace dsckpt {
namespace {

// Rows and columns are not a multiple of what vector code takes at once.
struct Matrices {
  static constexpr size_t kRows = 7;
  static constexpr size_t kColumns = 61;
  static constexpr size_t kPitch = 70;

  size_t rank;
  double scale = 0.7;
  std::vector<float> left = std::vector<float>(kRows * rank);
  std::vector<float> right = std::vector<float>(rank * kPitch);
  std::vector<float> base = std::vector<float>(kRows * kColumns);

  MergedTile tile() const {
    return {.base = base.data(),
            .scale = scale,
            .left = left.data(),
            .right = right.data(),
            .rows = kRows,
            .rank = rank,
            .columns = kColumns,
            .pitch = kPitch,
            .right_norm = largest_column_norm(right.data(), rank, kPitch)};
  }

  // One operation after the other.
  std::vector<double> merged() const {
    std::vector<double> values;
    for (size_t i = 0; i < kRows; ++i) {
      for (size_t j = 0; j < kColumns; ++j) {
        double sum = 0;
        for (size_t k = 0; k < rank; ++k) {
          sum += double{left[i * rank + k]} * double{right[k * kPitch + j]};
        }
        const double scaled = scale * sum;
        values.push_back(double{base[i * kColumns + j]} + scaled);
      }
    }
    return values;
  }

  void expect_rounded(DType to) const {
    std::vector<double> values = merged();
    std::vector<std::byte> expected(values.size() * size_of(to));
    round_float64(values.data(), to, expected.data(), values.size());
    std::vector<std::byte> rounded(expected.size() + 1);  // at an odd place
    merge_rounded(tile(), to, rounded.data() + 1);
    rounded.erase(rounded.begin());
    EXPECT_EQ(rounded, expected) << torch_name(to) << " rank " << rank;
  }
};

Matrices random_matrices(size_t rank, unsigned seed) {
  Matrices matrices{.rank = rank};
  std::mt19937 random(seed);
  std::normal_distribution<float> values;
  for (std::vector<float>* each : {&matrices.left, &matrices.right, &matrices.base}) {
    for (float& value : *each) value = values(random);
  }
  return matrices;
}

constexpr DType kTypes[] = {DType::float32, DType::bfloat16, DType::float16};
constexpr size_t kRanks[] = {1, 5, 16, 64, 80};

TEST(LargestColumnNorm, IsThatOfTheLongestColumn) {
  const std::vector<float> matrix = {3, 1, 0, 4, -1, 2};
  EXPECT_EQ(largest_column_norm(matrix.data(), 2, 3), std::sqrt(9.0 + 16.0));
  const std::vector<float> tiny = {1e-40F, 1e-40F};  // whose squares float32 does not have
  EXPECT_EQ(largest_column_norm(tiny.data(), 1, 2), double{1e-40F});
  const std::vector<float> odd = {1, std::numeric_limits<float>::quiet_NaN()};
  EXPECT_TRUE(std::isnan(largest_column_norm(odd.data(), 1, 2)));
}

TEST(MergeTile, AddsExactProductsByRisingRank) {
  for (const size_t rank : kRanks) {
    const Matrices matrices = random_matrices(rank, 12);
    std::vector<double> merged(matrices.base.size(), -1);
    merge_tile(matrices.tile(), merged.data());
    EXPECT_EQ(merged, matrices.merged()) << rank;
  }
}

TEST(MergeRounded, RoundsTheSumsOfFloat64) {
  for (const size_t rank : kRanks) {
    for (unsigned seed = 0; seed < 50; ++seed) {
      Matrices matrices = random_matrices(rank, seed);
      for (const DType to : kTypes) matrices.expect_rounded(to);
      // The larger the base, the less float32 keeps of the product; and the other way round.
      for (float& value : matrices.base) value *= seed % 2 == 0 ? 100.0F : 0.001F;
      for (const DType to : kTypes) matrices.expect_rounded(to);
    }
  }
}

// In float32 these sums end on a tie of 16 bits, where the sums of float64 are beside it.
TEST(MergeRounded, DecidesTiesByFloat64) {
  for (const DType to : {DType::bfloat16, DType::float16}) {
    const float tie = to == DType::bfloat16 ? 1 + 0x1p-8F : 1 + 0x1p-11F;
    for (const float tiny : {0x1p-25F, -0x1p-25F, 0x1p-40F, -0x1p-40F, 0x1p-100F, 0.0F}) {
      Matrices matrices{.rank = 2, .scale = 1};
      std::fill(matrices.base.begin(), matrices.base.end(), tie);
      std::fill(matrices.left.begin(), matrices.left.end(), tiny);
      std::fill(matrices.right.begin(), matrices.right.end(), 0.5F);
      matrices.expect_rounded(to);
      // Terms that cancel: float32 loses the third one.
      Matrices cancelling{.rank = 3, .scale = 1};
      std::fill(cancelling.base.begin(), cancelling.base.end(), tie);
      std::fill(cancelling.right.begin(), cancelling.right.end(), 1.0F);
      for (size_t i = 0; i < cancelling.left.size(); i += 3) {
        cancelling.left[i] = tiny;
        cancelling.left[i + 1] = 1e6F;
        cancelling.left[i + 2] = -1e6F;
      }
      cancelling.expect_rounded(to);
    }
  }
}

TEST(MergeRounded, TakesValuesThatAreNotFiniteTooLargeOrTooSmall) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  const float odd[] = {0.0F,
                       -0.0F,
                       kInfinity,
                       -kInfinity,
                       std::numeric_limits<float>::max(),
                       std::numeric_limits<float>::denorm_min(),
                       65504.0F,
                       65520.0F,
                       1e-8F,
                       3e38F,
                       -1e-40F,
                       std::nextafter(3.3895314e38F, kInfinity)};
  for (const size_t rank : {size_t{1}, size_t{4}}) {
    for (unsigned seed = 0; seed < 200; ++seed) {
      Matrices matrices = random_matrices(rank, seed);
      std::mt19937 random(seed);
      for (std::vector<float>* each : {&matrices.left, &matrices.right, &matrices.base}) {
        for (float& value : *each) {
          if (random() % 8 == 0) value = odd[random() % std::size(odd)];
        }
      }
      // NaN has many forms: two that meet may give either.
      for (const DType to : kTypes) {
        std::vector<double> values = matrices.merged();
        std::vector<std::byte> expected(values.size() * size_of(to));
        const std::vector<double> kept = values;
        round_float64(values.data(), to, expected.data(), values.size());
        std::vector<std::byte> rounded(expected.size());
        merge_rounded(matrices.tile(), to, rounded.data());
        for (size_t i = 0; i < kept.size(); ++i) {
          const auto at = [&](const std::vector<std::byte>& bytes) {
            float value;
            convert(to, DType::float32, bytes.data() + i * size_of(to),
                    reinterpret_cast<std::byte*>(&value), 1);
            return value;
          };
          if (std::isnan(kept[i])) {
            EXPECT_TRUE(std::isnan(at(rounded))) << i;
          } else {
            EXPECT_EQ(std::bit_cast<uint32_t>(at(rounded)), std::bit_cast<uint32_t>(at(expected)));
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace dsckpt
