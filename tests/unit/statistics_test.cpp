#include "base/statistics.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>
#include <random>

#include "base/bytes.h"

namespace dsckpt {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

template <typename T>
std::vector<std::byte> bytes_of(const std::vector<T>& values) {
  std::vector<std::byte> bytes(values.size() * sizeof(T));
  if (!values.empty()) std::memcpy(bytes.data(), values.data(), bytes.size());
  return bytes;
}

template <typename T>
Statistics statistics(DType dtype, const std::vector<T>& values, CpuCode code = CpuCode::best) {
  return statistics_of(dtype, bytes_of(values), true, code);
}

void expect_same_bits(double a, double b) {
  EXPECT_EQ(std::bit_cast<uint64_t>(a), std::bit_cast<uint64_t>(b)) << a << " and " << b;
}

void expect_same(const Statistics& a, const Statistics& b) {
  EXPECT_EQ(a.count, b.count);
  EXPECT_EQ(a.zeros, b.zeros);
  EXPECT_EQ(a.nans, b.nans);
  EXPECT_EQ(a.positive_infinities, b.positive_infinities);
  EXPECT_EQ(a.negative_infinities, b.negative_infinities);
  expect_same_bits(a.min, b.min);
  expect_same_bits(a.max, b.max);
  expect_same_bits(a.mean, b.mean);
  expect_same_bits(a.squared_deviations, b.squared_deviations);
  EXPECT_EQ(a.histogram.negative, b.histogram.negative);
  EXPECT_EQ(a.histogram.positive, b.histogram.positive);
}

// Any bits: NaNs, infinities and subnormals among them, most often when `wild`.
std::vector<std::byte> random_bytes(size_t size, bool wild) {
  std::mt19937_64 random(size * 2 + wild);
  std::vector<std::byte> bytes(size);
  for (std::byte& byte : bytes) byte = static_cast<std::byte>(random());
  if (!wild) {  // no exponent of all ones in any type
    for (std::byte& byte : bytes) byte &= std::byte{0xbb};
  }
  return bytes;
}

TEST(Statistics, CodeForTheCpuAndPortableCodeGiveTheSameBits) {
  for (const DType dtype : {DType::float32, DType::float16, DType::bfloat16, DType::float64}) {
    for (const bool wild : {false, true}) {
      for (size_t count = 0; count <= 70; ++count) {
        const std::vector<std::byte> bytes = random_bytes(count * size_of(dtype) + 8, wild);
        for (const size_t shift : {0u, 1u, 2u, 3u, 4u, 7u}) {
          SCOPED_TRACE(std::string(torch_name(dtype)) + " " + std::to_string(count) + " at " +
                       std::to_string(shift));
          const auto values = std::span(bytes).subspan(shift, count * size_of(dtype));
          expect_same(statistics_of(dtype, values, true, CpuCode::best),
                      statistics_of(dtype, values, true, CpuCode::portable));
        }
      }
      for (const size_t count : {2047u, 2048u, 2049u, 100'000u}) {
        const std::vector<std::byte> bytes = random_bytes(count * size_of(dtype), wild);
        expect_same(statistics_of(dtype, bytes, true, CpuCode::best),
                    statistics_of(dtype, bytes, true, CpuCode::portable));
      }
    }
  }
}

TEST(Statistics, EveryElementCountsAtEveryLengthAndAlignment) {
  for (size_t count = 1; count <= 70; ++count) {
    for (size_t place = 0; place < count; ++place) {
      std::vector<float> values(count, 2.0f);
      values[place] = -6.0f;
      std::vector<std::byte> bytes(place % 4);
      const std::vector<std::byte> plain = bytes_of(values);
      bytes.insert(bytes.end(), plain.begin(), plain.end());
      const Statistics s = statistics_of(DType::float32, std::span(bytes).subspan(place % 4));
      const double n = static_cast<double>(count);
      EXPECT_EQ(s.count, count);
      EXPECT_EQ(s.min, -6.0);
      EXPECT_EQ(s.max, count == 1 ? -6.0 : 2.0);
      EXPECT_NEAR(s.sum(), 2 * n - 8, 1e-12);
      EXPECT_NEAR(s.norm(), std::sqrt(4 * n + 32), 1e-12);
    }
  }
}

TEST(Statistics, WhatIsNoNumberIsCountedAndLeftOut) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const float inf = std::numeric_limits<float>::infinity();
  for (const size_t ones : {0u, 3u, 40u}) {  // all in one vector of the CPU, and not
    std::vector<float> values{nan, -inf, 5.0f, inf, inf, 0.0f, -0.0f, -nan, 1e-40f, -3.0f};
    values.insert(values.end(), ones, 1.0f);
    const Statistics s = statistics(DType::float32, values);
    EXPECT_EQ(s.count, 10 + ones);
    EXPECT_EQ(s.nans, 2u);
    EXPECT_EQ(s.positive_infinities, 2u);
    EXPECT_EQ(s.negative_infinities, 1u);
    EXPECT_EQ(s.infinities(), 3u);
    EXPECT_EQ(s.finite(), 5 + ones);
    EXPECT_EQ(s.zeros, 2u);
    EXPECT_EQ(s.min, -3.0);
    EXPECT_EQ(s.max, 5.0);
    EXPECT_NEAR(s.sum(), 2.0 + static_cast<double>(ones), 1e-12);
    EXPECT_NEAR(s.norm() * s.norm(), 34.0 + static_cast<double>(ones), 1e-12);
  }
}

TEST(Statistics, NothingHasNoExtremes) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  for (const std::vector<float>& values :
       {std::vector<float>{}, std::vector<float>{nan}, std::vector<float>(50, -nan)}) {
    const Statistics s = statistics(DType::float32, values);
    EXPECT_EQ(s.nans, values.size());
    EXPECT_TRUE(std::isnan(s.min));
    EXPECT_TRUE(std::isnan(s.max));
    EXPECT_TRUE(std::isnan(s.standard_deviation()));
    EXPECT_EQ(s.norm(), 0.0);
    EXPECT_EQ(s.mean, 0.0);
  }
  EXPECT_TRUE(std::isnan(statistics(DType::float32, std::vector<float>{4}).standard_deviation()));
}

TEST(Statistics, ExtremesAreNeverNegativeZero) {
  for (const size_t count : {1u, 8u, 33u}) {
    const Statistics s = statistics(DType::float32, std::vector<float>(count, -0.0f));
    expect_same_bits(s.min, 0.0);
    expect_same_bits(s.max, 0.0);
    EXPECT_EQ(s.zeros, count);
    EXPECT_EQ(s.histogram.positive, std::vector<uint64_t>(Histogram::kBins));
    EXPECT_EQ(s.histogram.negative, std::vector<uint64_t>(Histogram::kBins));
  }
}

TEST(Statistics, DeviationIsRightWhereTheMeanIsFarLarger) {
  // 2^24 + {0, 2, 4, 6}, over and over: the variance of 0, 2, 4, 6 is 5.
  std::vector<float> values(400'000);
  for (size_t i = 0; i < values.size(); ++i) {
    values[i] = 16777216.0f + 2.0f * static_cast<float>(i % 4);
  }
  const Statistics s = statistics(DType::float32, values);
  const double n = static_cast<double>(values.size());
  EXPECT_NEAR(s.mean, 16777219.0, 1e-6);
  EXPECT_NEAR(s.standard_deviation(), std::sqrt(5.0 * n / (n - 1)), 1e-12);

  std::vector<double> wide(100'000);
  for (size_t i = 0; i < wide.size(); ++i) wide[i] = 1e9 + static_cast<double>(i % 2);
  EXPECT_NEAR(statistics(DType::float64, wide).squared_deviations, 25'000.0, 1e-6);
}

TEST(Statistics, AnOutlierInFrontSpoilsNothing) {
  std::vector<float> values(10'000, 1.0f);
  values.front() = 1e12f;
  const double outlier = 1e12f;
  const double n = 10'000;
  const Statistics s = statistics(DType::float32, values);
  const double deviations = (outlier - 1) * (outlier - 1) * (n - 1) / n;
  EXPECT_NEAR(s.squared_deviations / deviations, 1.0, 1e-12);
  EXPECT_NEAR(s.sum() / (outlier + n - 1), 1.0, 1e-12);
}

TEST(Statistics, IntegersAndBooleansAreNumbers) {
  EXPECT_EQ(statistics(DType::int64, std::vector<int64_t>{-5, 1'000'000'000'000}).max, 1e12);
  EXPECT_EQ(statistics(DType::int32, std::vector<int32_t>{-2147483647, 16777217}).max, 16777217.0);
  EXPECT_EQ(statistics(DType::uint32, std::vector<uint32_t>{4294967295u}).min, 4294967295.0);
  EXPECT_EQ(statistics(DType::uint64, std::vector<uint64_t>{uint64_t{1} << 63}).max, 0x1p63);
  EXPECT_EQ(statistics(DType::int16, std::vector<int16_t>{-32768, 7}).min, -32768.0);
  EXPECT_EQ(statistics(DType::uint16, std::vector<uint16_t>{65535, 7}).max, 65535.0);
  EXPECT_EQ(statistics(DType::int8, std::vector<int8_t>{-128, 0, 127}).mean, -1.0 / 3);
  EXPECT_EQ(statistics(DType::uint8, std::vector<uint8_t>{255, 0}).max, 255.0);
  const Statistics booleans = statistics(DType::boolean, std::vector<uint8_t>{1, 0, 0, 1, 1});
  EXPECT_EQ(booleans.zeros, 2u);
  EXPECT_EQ(booleans.sum(), 3.0);
}

TEST(Statistics, SmallFloatsAreWhatTheirFormatsSay) {
  // 1.0, the largest, NaN, zero and, where there is one, infinity.
  const Statistics e4m3 =
      statistics(DType::float8_e4m3fn, std::vector<uint8_t>{0x38, 0x7e, 0x7f, 0x80});
  EXPECT_EQ(e4m3.max, 448.0);
  EXPECT_EQ(e4m3.nans, 1u);
  EXPECT_EQ(e4m3.zeros, 1u);
  const Statistics e5m2 =
      statistics(DType::float8_e5m2, std::vector<uint8_t>{0x3c, 0x7b, 0x7d, 0xfc});
  EXPECT_EQ(e5m2.max, 57344.0);
  EXPECT_EQ(e5m2.nans, 1u);
  EXPECT_EQ(e5m2.negative_infinities, 1u);
  const Statistics half =
      statistics(DType::float16, std::vector<uint16_t>{0x7bff, 0xfc00, 0x0001, 0x8000});
  EXPECT_EQ(half.max, 65504.0);
  EXPECT_EQ(half.negative_infinities, 1u);
  EXPECT_EQ(half.zeros, 1u);
  EXPECT_EQ(half.min, 0.0);
  const Statistics brain = statistics(DType::bfloat16, std::vector<uint16_t>{0x3f80, 0xc2c8});
  EXPECT_EQ(brain.min, -100.0);
}

TEST(Statistics, ComplexElementsAreTwo) {
  const Statistics s = statistics(DType::complex64, std::vector<float>{1, -2, 0, std::nanf("")});
  EXPECT_EQ(s.count, 4u);
  EXPECT_EQ(s.nans, 1u);
  EXPECT_EQ(s.zeros, 1u);
  EXPECT_EQ(s.min, -2.0);
  EXPECT_EQ(statistics(DType::complex32, std::vector<uint16_t>{0x3c00, 0xc000}).min, -2.0);
  EXPECT_EQ(statistics(DType::complex128, std::vector<double>{1e300, 3}).max, 1e300);
}

TEST(Statistics, HistogramHasAnOctaveInABin) {
  const auto bin = [](int exponent) {
    return static_cast<size_t>(exponent - Histogram::kFirstExponent);
  };
  const Statistics s = statistics(
      DType::float32, std::vector<float>{1.0f, 1.999f, 2.0f, -0.5f, -0.99f, 0.0f, -0.0f, 1e-40f,
                                         std::numeric_limits<float>::max(), std::nanf("")});
  std::vector<uint64_t> positive(Histogram::kBins);
  positive[bin(0)] = 2;
  positive[bin(1)] = 1;
  positive[0] = 1;
  positive[bin(127)] = 1;
  std::vector<uint64_t> negative(Histogram::kBins);
  negative[bin(-1)] = 2;
  EXPECT_EQ(s.histogram.positive, positive);
  EXPECT_EQ(s.histogram.negative, negative);

  const Statistics wide = statistics(DType::float64, std::vector<double>{1e-300, -1e300, 4.0});
  EXPECT_EQ(wide.histogram.positive[0], 1u);
  EXPECT_EQ(wide.histogram.positive[bin(2)], 1u);
  EXPECT_EQ(wide.histogram.negative[bin(127)], 1u);

  EXPECT_TRUE(statistics_of(DType::float32, bytes_of(std::vector<float>{1})).histogram.empty());
}

TEST(Statistics, PartsAddUpToTheWhole) {
  std::mt19937 random(7);
  std::normal_distribution<float> normal(3.0f, 0.5f);
  std::vector<float> values(30'000);
  for (float& value : values) value = normal(random);
  values[17] = std::numeric_limits<float>::infinity();
  values[20'000] = std::nanf("");
  const std::vector<std::byte> bytes = bytes_of(values);
  const Statistics whole = statistics_of(DType::float32, bytes, true);
  Statistics sum;
  size_t at = 0;
  for (const size_t count : {0u, 1u, 16u, 9'999u, 5u, 10'000u, 9'979u, 0u}) {
    sum.add(
        statistics_of(DType::float32, std::span(bytes).subspan(at * 4, count * size_t{4}), true));
    at += count;
  }
  ASSERT_EQ(at, values.size());
  EXPECT_EQ(sum.count, whole.count);
  EXPECT_EQ(sum.nans, 1u);
  EXPECT_EQ(sum.infinities(), 1u);
  EXPECT_EQ(sum.min, whole.min);
  EXPECT_EQ(sum.max, whole.max);
  EXPECT_NEAR(sum.mean, whole.mean, 1e-14);
  EXPECT_NEAR(sum.standard_deviation(), whole.standard_deviation(), 1e-13);
  EXPECT_EQ(sum.histogram.positive, whole.histogram.positive);
  EXPECT_EQ(std::accumulate(sum.histogram.positive.begin(), sum.histogram.positive.end(),
                            std::accumulate(sum.histogram.negative.begin(),
                                            sum.histogram.negative.end(), uint64_t{0})),
            sum.finite());
}

TEST(Statistics, SquaresBeyondTheRangeOfDoubleAreInfiniteAndNeverNan) {
  const double huge = 1.7e308;
  for (const std::vector<double>& values : {std::vector<double>{-1e300, 1e300},
                                            {huge, -huge, huge},
                                            {huge, huge, huge, -huge},
                                            {-huge, -huge},
                                            std::vector<double>(5000, huge),
                                            std::vector<double>(2048, huge)}) {
    std::vector<double> more = values;
    more.back() = -more.front() / 2;
    for (const std::vector<double>& some : {values, more}) {
      const Statistics s = statistics(DType::float64, some);
      EXPECT_EQ(s.norm(), kInfinity);
      EXPECT_TRUE(std::isfinite(s.mean)) << s.mean;
      EXPECT_GE(s.standard_deviation(), 0.0);
    }
  }
  EXPECT_EQ(statistics(DType::float64, std::vector<double>{huge, -huge, huge}).standard_deviation(),
            kInfinity);
}

TEST(Statistics, MeanIsRightWhereTheSumIsBeyondTheRangeOfDouble) {
  const double huge = 1.7e308;
  const auto mean = [](const std::vector<double>& values) {
    return statistics(DType::float64, values).mean;
  };
  const double largest = std::numeric_limits<double>::max();
  EXPECT_EQ(mean(std::vector<double>(3000, largest)), largest);
  EXPECT_EQ(mean(std::vector<double>(7, -largest)), -largest);
  EXPECT_NEAR(mean({huge, -huge, huge}) / huge, 1.0 / 3, 1e-15);
  EXPECT_NEAR(mean({huge, huge, huge, -huge}) / huge, 0.5, 1e-15);
  EXPECT_EQ(mean({-1e300, 1e300}), 0.0);

  // A piece of the one, then some of the other: their means are further apart than the range.
  std::vector<double> values(4096, huge);
  std::fill(values.begin() + 2048, values.end(), -huge);
  EXPECT_EQ(mean(values), 0.0);
  values.resize(3072);
  EXPECT_NEAR(mean(values) / huge, 1.0 / 3, 1e-15);
}

TEST(Statistics, AddingWhatIsHugeToNothingOrNothingToItKeepsIt) {
  const Statistics huge = statistics(DType::float64, std::vector<double>{1e300, 1e300});
  const Statistics nothing = statistics(DType::float64, std::vector<double>{});
  for (const auto& [first, second] : {std::pair(nothing, huge), std::pair(huge, nothing)}) {
    Statistics sum = first;
    sum.add(second);
    EXPECT_EQ(sum.mean, 1e300);
    EXPECT_EQ(sum.standard_deviation(), 0.0);
    EXPECT_EQ(sum.max, 1e300);
  }
}

}  // namespace
}  // namespace dsckpt
