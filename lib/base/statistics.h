// Statistics of elements: what is counted, the extremes, mean and deviation, how large they are.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "dsckpt/dtype.h"

namespace dsckpt {

// How many finite elements that are not zero there are of each size, in octaves.
struct Histogram {
  // Bin i is 2^(i - 127) <= |x| < 2^(i - 126); the first also has all that is smaller, the last all
  // that is larger.
  static constexpr size_t kBins = 255;
  static constexpr int kFirstExponent = -127;

  // kBins each, or empty if no histogram was asked for.
  std::vector<uint64_t> negative = {};
  std::vector<uint64_t> positive = {};

  bool empty() const { return positive.empty(); }
};

// Of any number of elements. A complex element is two, its real and its imaginary part, as in
// torch.view_as_real; true and false are 1 and 0. Elements of 64-bit integers are rounded to
// float64 first.
struct Statistics {
  uint64_t count = 0;
  uint64_t zeros = 0;  // also -0.0
  uint64_t nans = 0;
  uint64_t positive_infinities = 0;
  uint64_t negative_infinities = 0;
  // Of the finite elements. If there is none, the extremes are NaN and the rest is 0. Never -0.0.
  double min;
  double max;
  double mean = 0;                // between the extremes, so finite
  double squared_deviations = 0;  // the sum of (x - mean)^2; infinite beyond float64's range
  Histogram histogram;

  Statistics();
  uint64_t infinities() const { return positive_infinities + negative_infinities; }
  uint64_t finite() const { return count - nans - infinities(); }
  double sum() const;
  // As torch.std: with Bessel's correction. NaN for less than two finite elements, infinite where
  // squares are beyond float64's range.
  double standard_deviation() const;
  // The square root of the sum of squares, as torch.linalg.vector_norm; infinite where squares are
  // beyond float64's range.
  double norm() const;

  // Makes it the statistics of its elements and those of `other`. The order in which parts are
  // added matters in the last digits.
  void add(const Statistics& other);
};

// Portable code gives the same bits as the code for this CPU.
enum class CpuCode : uint8_t { best, portable };

// The statistics of `bytes`, elements of `dtype` at any alignment. Accumulates in float64: sum and
// squares are right to 1e-12 and better relative to what is summed, also where the mean is far
// larger than the deviation.
Statistics statistics_of(DType dtype, std::span<const std::byte> bytes, bool with_histogram = false,
                         CpuCode code = CpuCode::best);

}  // namespace dsckpt
