// Statistics of elements: counts, extremes, mean, deviation, and a histogram of sizes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "dsckpt/dtype.h"

namespace dsckpt {

// Counts of the finite elements other than zero, by their size in octaves.
struct Histogram {
  // Bin i is 2^(i - 127) <= |x| < 2^(i - 126). The first bin also has all smaller numbers, the last
  // all larger ones.
  static constexpr size_t kBins = 255;
  static constexpr int kFirstExponent = -127;

  // kBins each, or empty if no histogram was asked for.
  std::vector<uint64_t> negative = {};
  std::vector<uint64_t> positive = {};

  bool empty() const { return positive.empty(); }
};

// Statistics of any number of elements. A complex element is two, its real and its imaginary part,
// as in torch.view_as_real. Booleans are 1 and 0. 64-bit integers are first rounded to float64.
struct Statistics {
  uint64_t count = 0;
  uint64_t zeros = 0;  // also -0.0
  uint64_t nans = 0;
  uint64_t positive_infinities = 0;
  uint64_t negative_infinities = 0;
  // Over the finite elements. If there is none, the extremes are NaN and the others are 0. Never
  // -0.0.
  double min;
  double max;
  double mean = 0;                // between the extremes, so finite
  double squared_deviations = 0;  // the sum of (x - mean)^2; infinite beyond float64's range
  Histogram histogram;

  Statistics();
  uint64_t infinities() const { return positive_infinities + negative_infinities; }
  uint64_t finite() const { return count - nans - infinities(); }
  double sum() const;
  // As torch.std, with Bessel's correction. NaN for fewer than two finite elements, infinite if
  // squares exceed float64.
  double standard_deviation() const;
  // The square root of the sum of squares, as torch.linalg.vector_norm; infinite if squares exceed
  // float64.
  double norm() const;

  // Adds the elements of `other`. The last digits depend on the order in which parts are added.
  void add(const Statistics& other);
};

// Portable code and code for this CPU give the same bits.
enum class CpuCode : uint8_t { best, portable };

// The statistics of `bytes`, elements of `dtype` at any alignment. They are computed in float64.
// Sums and squares have a relative error of 1e-12 or less, even where the mean is far larger than
// the deviation.
Statistics statistics_of(DType dtype, std::span<const std::byte> bytes, bool with_histogram = false,
                         CpuCode code = CpuCode::best);

}  // namespace dsckpt
