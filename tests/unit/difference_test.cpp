#include "base/difference.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "dsckpt/error.h"

namespace dsckpt {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

template <typename T>
std::vector<std::byte> bytes_of(const std::vector<T>& values) {
  std::vector<std::byte> bytes(values.size() * sizeof(T));
  if (!bytes.empty()) std::memcpy(bytes.data(), values.data(), bytes.size());
  return bytes;
}

template <typename T>
Difference difference(DType dtype, const std::vector<T>& a, const std::vector<T>& b,
                      const std::optional<Tolerance>& tolerance = {}) {
  const std::vector<std::byte> bytes_a = bytes_of(a);
  const std::vector<std::byte> bytes_b = bytes_of(b);
  return difference_of({dtype, bytes_a}, {dtype, bytes_b}, dtype, 0, tolerance);
}

TEST(Difference, EqualBitsDifferInNothing) {
  const float nan = std::nanf("");
  const Difference same = difference<float>(DType::float32, {1, nan, -0.0f}, {1, nan, -0.0f});
  EXPECT_EQ(same.count, 3u);
  EXPECT_EQ(same.differing, 0u);
  EXPECT_EQ(same.index, -1);
  EXPECT_EQ(difference<float>(DType::float32, {}, {}).count, 0u);
}

TEST(Difference, TheFirstOfTheLargestIsNamed) {
  std::vector<float> a(5000, 1.0f);
  std::vector<float> b = a;
  b[10] = 1.5f;
  b[1500] = -1.0f;
  b[4000] = 3.0f;
  const Difference d = difference(DType::float32, a, b);
  EXPECT_EQ(d.differing, 3u);
  EXPECT_EQ(d.max_absolute, 2.0);
  EXPECT_EQ(d.max_relative, 2.0);
  EXPECT_EQ(d.index, 1500);
  EXPECT_EQ(d.a, 1.0);
  EXPECT_EQ(d.b, -1.0);
}

TEST(Difference, ChangeAndCosineAreThoseOfTheVectors) {
  std::vector<float> a(2600);
  std::vector<float> b(2600);
  double change = 0;
  double squared_a = 0;
  double squared_b = 0;
  double product = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    a[i] = 0.25f * static_cast<float>(i % 37) - 3;
    b[i] = i % 1300 < 1100 ? a[i] : a[i] + 0.5f;  // whole pieces are equal
    change += std::pow(b[i] - a[i], 2);
    squared_a += std::pow(a[i], 2);
    squared_b += std::pow(b[i], 2);
    product += double{a[i]} * b[i];
  }
  const Difference d = difference(DType::float32, a, b);
  EXPECT_NEAR(d.relative_change(), std::sqrt(change / squared_a), 1e-12);
  EXPECT_NEAR(d.cosine(), product / std::sqrt(squared_a * squared_b), 1e-12);

  Difference parts =
      difference<float>(DType::float32, {a.begin(), a.begin() + 100}, {b.begin(), b.begin() + 100});
  parts.add(
      difference<float>(DType::float32, {a.begin() + 100, a.end()}, {b.begin() + 100, b.end()}));
  EXPECT_NEAR(parts.relative_change(), d.relative_change(), 1e-12);

  EXPECT_EQ(difference<float>(DType::float32, {0}, {2}).relative_change(), kInfinity);
  EXPECT_EQ(difference<float>(DType::float32, {0}, {0}).relative_change(), 0);
  EXPECT_DOUBLE_EQ(difference<float>(DType::float32, {1, 2}, {-2, -4}).cosine(), -1);
  const float nan = std::nanf("");
  EXPECT_TRUE(std::isnan(difference<float>(DType::float32, {1, nan}, {1, 2}).relative_change()));
  EXPECT_TRUE(std::isnan(difference<float>(DType::float32, {0, 0}, {1, 2}).cosine()));
}

TEST(Difference, UlpsAreStepsOfTheType) {
  EXPECT_EQ(difference<float>(DType::float32, {1.0f}, {std::nextafter(1.0f, 2.0f)}).max_ulps, 1u);
  EXPECT_EQ(difference<double>(DType::float64, {1.0}, {std::nextafter(1.0, 0.0)}).max_ulps, 1u);
  EXPECT_EQ(difference<uint16_t>(DType::bfloat16, {0x3f80}, {0x3f83}).max_ulps, 3u);
  EXPECT_EQ(difference<uint16_t>(DType::float16, {0x0001}, {0x8001}).max_ulps, 2u);
  EXPECT_EQ(difference<uint16_t>(DType::float16, {0x7bff}, {0x7c00}).max_ulps, 1u);
  EXPECT_EQ(difference<uint8_t>(DType::float8_e4m3fn, {0x38}, {0x3a}).max_ulps, 2u);
  EXPECT_EQ(difference<uint8_t>(DType::float8_e8m0fnu, {0x7f}, {0x82}).max_ulps, 3u);
  EXPECT_EQ(difference<double>(DType::float64, {-std::numeric_limits<double>::max()},
                               {std::numeric_limits<double>::max()})
                .max_ulps,
            2 * 0x7fefffffffffffffull);
}

TEST(Difference, SignedZerosDifferInBitsOnly) {
  const Difference d = difference<float>(DType::float32, {1, 0.0f}, {1, -0.0f});
  EXPECT_EQ(d.differing, 1u);
  EXPECT_EQ(d.outside, 1u);
  EXPECT_EQ(d.max_absolute, 0.0);
  EXPECT_EQ(d.max_relative, 0.0);
  EXPECT_EQ(d.max_ulps, 0u);
  EXPECT_EQ(d.index, 1);
  EXPECT_EQ(difference<float>(DType::float32, {0.0f}, {-0.0f}, Tolerance{}).outside, 0u);
}

TEST(Difference, NanIsFarFromAllButItself) {
  const float nan = std::nanf("");
  const float other = std::nanf("17");
  for (const auto& [a, b] : {std::pair(nan, 1.0f), std::pair(1.0f, nan), std::pair(nan, other)}) {
    const Difference d = difference<float>(DType::float32, {2, a}, {3, b}, Tolerance{1e9, 1e9});
    EXPECT_EQ(d.differing, 2u);
    EXPECT_EQ(d.outside, 1u);
    EXPECT_EQ(d.max_absolute, kInfinity);
    EXPECT_EQ(d.max_relative, kInfinity);
    EXPECT_EQ(d.max_ulps, 0x400000u);  // of 2 and 3
    EXPECT_EQ(d.index, 1);
  }
}

TEST(Difference, ToleranceHasBothEnds) {
  const auto outside = [](float a, float b, Tolerance tolerance) {
    return difference<float>(DType::float32, {a}, {b}, tolerance).outside;
  };
  EXPECT_EQ(outside(1.0f, 1.5f, {0.5, 0}), 0u);
  EXPECT_EQ(outside(1.0f, 1.5f, {0.4999, 0}), 1u);
  EXPECT_EQ(outside(2.0f, 4.0f, {0, 0.5}), 0u);  // relative to b
  EXPECT_EQ(outside(4.0f, 2.0f, {0, 0.5}), 1u);
  const float inf = std::numeric_limits<float>::infinity();
  EXPECT_EQ(outside(1.0f, inf, {1, 1}), 1u);
  EXPECT_EQ(outside(-inf, inf, {1, 1}), 1u);
}

TEST(Difference, Integers64AreSubtractedAsIntegers) {
  const int64_t big = int64_t{1} << 60;
  const std::vector<int64_t> a{int64_t{1} << 53, big, -big - 1};
  const std::vector<int64_t> b{(int64_t{1} << 53) + 1, big + 2, -big};
  const Difference d = difference(DType::int64, a, b, Tolerance{1, 0});
  EXPECT_EQ(d.differing, 3u);
  EXPECT_EQ(d.outside, 1u);
  EXPECT_EQ(d.index, 1);
  EXPECT_EQ(static_cast<uint64_t>(d.max_absolute), 2u);
  EXPECT_EQ(static_cast<int64_t>(d.a), big);
  EXPECT_EQ(static_cast<int64_t>(d.b), big + 2);
  EXPECT_DOUBLE_EQ(d.max_relative, 0x1p-53);
  EXPECT_EQ(difference(DType::int64, a, b, Tolerance{0, 0}).outside, 3u);
}

TEST(Difference, FurthestIntegers64AreApartByAllOfTheRange) {
  const int64_t lowest = std::numeric_limits<int64_t>::min();
  const int64_t highest = std::numeric_limits<int64_t>::max();
  const uint64_t range = std::numeric_limits<uint64_t>::max();
  const Difference d = difference<int64_t>(DType::int64, {lowest}, {highest}, Tolerance{0x1p64, 0});
  EXPECT_EQ(static_cast<uint64_t>(d.max_absolute), range);
  EXPECT_EQ(d.outside, 0u);
  const Difference u = difference<uint64_t>(DType::uint64, {range, 0}, {range - 1, range});
  EXPECT_EQ(u.differing, 2u);
  EXPECT_EQ(static_cast<uint64_t>(u.max_absolute), range);
  EXPECT_EQ(static_cast<uint64_t>(u.b), range);
  EXPECT_EQ(u.index, 1);
}

TEST(Difference, LargestOfPartsIsFoundAmongIntegersThatFloat64TakesForOne) {
  const int64_t big = int64_t{1} << 60;
  Difference sum = difference<int64_t>(DType::int64, {big}, {0});
  sum.add(difference<int64_t>(DType::int64, {big + 1}, {0}));
  EXPECT_EQ(static_cast<int64_t>(sum.max_absolute), big + 1);
  EXPECT_EQ(static_cast<int64_t>(sum.a), big + 1);
}

TEST(Difference, AnInfiniteToleranceTakesAllThatIsFinitelyFar) {
  const float inf = std::numeric_limits<float>::infinity();
  for (const Tolerance& tolerance :
       {Tolerance{kInfinity, 0}, Tolerance{kInfinity, kInfinity}, Tolerance{0, kInfinity}}) {
    EXPECT_EQ(difference<float>(DType::float32, {1, 0}, {-5, -0.0f}, tolerance).outside, 0u);
    EXPECT_EQ(difference<float>(DType::float32, {inf, 1}, {1, std::nanf("")}, tolerance).outside,
              2u);
  }
  EXPECT_EQ(difference<float>(DType::float32, {1}, {0}, Tolerance{1, kInfinity}).outside, 0u);
  EXPECT_EQ(difference<float>(DType::float32, {2}, {0}, Tolerance{1, kInfinity}).outside, 1u);
}

TEST(Difference, TypesAreConvertedBeforeTheyAreCompared) {
  const std::vector<std::byte> wide = bytes_of(std::vector<float>(3000, 1.001f));
  const std::vector<std::byte> narrow = bytes_of(std::vector<uint16_t>(3000, 0x3f80));
  const Elements a{DType::float32, wide};
  const Elements b{DType::bfloat16, narrow};
  EXPECT_EQ(difference_of(a, b, DType::bfloat16, 0).differing, 0u);
  EXPECT_EQ(difference_of(a, b, DType::float32, 7).differing, 3000u);
  EXPECT_EQ(difference_of(a, b, DType::float32, 7).index, 7);
  EXPECT_THROW(difference_of(a, b, DType::int8, 0), UnsupportedError);
}

TEST(Difference, ComplexElementsAreTwo) {
  const Difference d = difference<float>(DType::complex64, {1, 2, 3, 4}, {1, 2, 3, 5});
  EXPECT_EQ(d.count, 4u);
  EXPECT_EQ(d.differing, 1u);
  EXPECT_EQ(d.index, 3);
}

TEST(Difference, PartsAddUpToTheWhole) {
  Difference sum;
  sum.add(difference<float>(DType::float32, {1, 2}, {1, 2}));
  EXPECT_EQ(sum.index, -1);
  const std::vector<std::byte> a = bytes_of(std::vector<float>{1, 1});
  const std::vector<std::byte> b = bytes_of(std::vector<float>{1, 2});
  sum.add(difference_of({DType::float32, a}, {DType::float32, b}, DType::float32, 2));
  sum.add(difference_of({DType::float32, a}, {DType::float32, b}, DType::float32, 4));
  EXPECT_EQ(sum.count, 6u);
  EXPECT_EQ(sum.differing, 2u);
  EXPECT_EQ(sum.index, 3);
  EXPECT_EQ(sum.max_absolute, 1.0);
}

}  // namespace
}  // namespace dsckpt
