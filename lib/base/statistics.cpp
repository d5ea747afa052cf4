#include "base/statistics.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <limits>

#include "base/bytes.h"
#include "base/kernels.h"
#include "base/widen.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace dsckpt {
namespace {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

// Elements per step: they stay in the first-level cache from one pass to the next.
constexpr size_t kPiece = 2048;
// A sum of any number of elements is finite if each is multiplied by this.
constexpr double kShrink = 0x1p-12;
// Number of lanes of a sum. Element i goes to lane i % kLanes in every implementation, so that all
// give the same result.
constexpr size_t kLanes = 16;
using Lanes = std::array<double, kLanes>;

double total_of(const Lanes& lanes) {
  double total = 0;
  for (const double lane : lanes) total += lane;
  return total;
}

template <typename T>
struct Bits;
template <>
struct Bits<float> {
  using Word = uint32_t;
  static constexpr int kMantissa = 23;
};
template <>
struct Bits<double> {
  using Word = uint64_t;
  static constexpr int kMantissa = 52;
};
template <typename T>
using Word = typename Bits<T>::Word;

template <typename T>
constexpr Word<T> infinity_bits() {
  return std::bit_cast<Word<T>>(std::numeric_limits<T>::infinity());
}

template <typename T>
Word<T> magnitude(T value) {
  return std::bit_cast<Word<T>>(value) & (~Word<T>{0} >> 1);
}

// Results of the first pass over a piece.
template <typename T>
struct Sums {
  Lanes lanes{};
  T min = std::numeric_limits<T>::infinity();
  T max = -std::numeric_limits<T>::infinity();
  uint64_t zeros = 0;
  Word<T> largest = 0;  // magnitude; the sums and extremes hold only if it is finite
};

template <typename T>
T element(const std::byte* values, size_t i) {
  return load_le<T>(values + i * sizeof(T));
}

template <typename T>
void sum_portable(const std::byte* values, size_t begin, size_t end, Sums<T>& sums) {
  for (size_t i = begin; i < end; ++i) {
    const T value = element<T>(values, i);
    sums.lanes[i % kLanes] += static_cast<double>(value);
    sums.min = std::min(sums.min, value);
    sums.max = std::max(sums.max, value);
    sums.zeros += value == 0;
    sums.largest = std::max(sums.largest, magnitude(value));
  }
}

template <typename T>
void square_portable(const std::byte* values, size_t begin, size_t end, double mean, Lanes& lanes) {
  for (size_t i = begin; i < end; ++i) {
    const double distance = static_cast<double>(element<T>(values, i)) - mean;
    lanes[i % kLanes] += distance * distance;
  }
}

#if defined(__x86_64__)

bool has_avx2() {
  static const bool yes = __builtin_cpu_supports("avx2");
  return yes;
}

#define DSCKPT_AVX2 __attribute__((target("avx2")))

// Loads element `i` and the three after it as float64.
DSCKPT_AVX2 inline __m256d load_four(const std::byte* values, size_t i) {
  return _mm256_cvtps_pd(_mm_loadu_ps(reinterpret_cast<const float*>(values + i * sizeof(float))));
}

// Magnitudes are compared as integers: without the sign bit, the bits of floats are in order.
DSCKPT_AVX2 size_t sum_avx2(const std::byte* values, size_t count, Sums<float>& sums) {
  __m256d lanes[4] = {_mm256_setzero_pd(), _mm256_setzero_pd(), _mm256_setzero_pd(),
                      _mm256_setzero_pd()};
  __m256 min = _mm256_set1_ps(sums.min);
  __m256 max = _mm256_set1_ps(sums.max);
  __m256i zeros = _mm256_setzero_si256();
  __m256i largest = _mm256_setzero_si256();
  const __m256i no_sign = _mm256_set1_epi32(0x7fffffff);
  size_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    for (size_t half = 0; half < 2; ++half) {
      const size_t at = i + half * 8;
      const __m256 value =
          _mm256_loadu_ps(reinterpret_cast<const float*>(values + at * sizeof(float)));
      const __m256i size = _mm256_and_si256(_mm256_castps_si256(value), no_sign);
      lanes[half * 2] = _mm256_add_pd(lanes[half * 2], load_four(values, at));
      lanes[half * 2 + 1] = _mm256_add_pd(lanes[half * 2 + 1], load_four(values, at + 4));
      min = _mm256_min_ps(min, value);
      max = _mm256_max_ps(max, value);
      zeros = _mm256_sub_epi32(zeros, _mm256_cmpeq_epi32(size, _mm256_setzero_si256()));
      largest = _mm256_max_epi32(largest, size);
    }
  }
  for (size_t lane = 0; lane < kLanes; lane += 4) {
    _mm256_storeu_pd(sums.lanes.data() + lane, lanes[lane / 4]);
  }
  std::array<float, 8> floats;
  _mm256_storeu_ps(floats.data(), min);
  sums.min = *std::min_element(floats.begin(), floats.end());
  _mm256_storeu_ps(floats.data(), max);
  sums.max = *std::max_element(floats.begin(), floats.end());
  std::array<uint32_t, 8> words;
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(words.data()), zeros);
  for (const uint32_t word : words) sums.zeros += word;
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(words.data()), largest);
  sums.largest = *std::max_element(words.begin(), words.end());
  return i;
}

DSCKPT_AVX2 size_t square_avx2(const std::byte* values, size_t count, double mean, Lanes& lanes) {
  const __m256d center = _mm256_set1_pd(mean);
  __m256d sums[4] = {_mm256_setzero_pd(), _mm256_setzero_pd(), _mm256_setzero_pd(),
                     _mm256_setzero_pd()};
  size_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    for (size_t four = 0; four < 4; ++four) {
      const __m256d distance = _mm256_sub_pd(load_four(values, i + four * 4), center);
      sums[four] = _mm256_add_pd(sums[four], _mm256_mul_pd(distance, distance));
    }
  }
  for (size_t lane = 0; lane < kLanes; lane += 4) {
    _mm256_storeu_pd(lanes.data() + lane, sums[lane / 4]);
  }
  return i;
}

#undef DSCKPT_AVX2

#else

bool has_avx2() {
  return false;
}
size_t sum_avx2(const std::byte*, size_t, Sums<float>&) {
  return 0;
}
size_t square_avx2(const std::byte*, size_t, double, Lanes&) {
  return 0;
}

#endif

// Each returns how many elements at the front are done.
template <typename T>
size_t sum_fast(const std::byte*, size_t, Sums<T>&) {
  return 0;
}
template <>
size_t sum_fast(const std::byte* values, size_t count, Sums<float>& sums) {
  return has_avx2() ? sum_avx2(values, count, sums) : 0;
}
template <typename T>
size_t square_fast(const std::byte*, size_t, double, Lanes&) {
  return 0;
}
template <>
size_t square_fast<float>(const std::byte* values, size_t count, double mean, Lanes& lanes) {
  return has_avx2() ? square_avx2(values, count, mean, lanes) : 0;
}

// Returns the mean of finite elements. `sum` is their sum, possibly beyond float64's range.
template <typename T>
double mean_of(const std::byte* values, size_t count, double sum) {
  if (std::isfinite(sum)) return sum / static_cast<double>(count);
  double shrunk = 0;
  for (size_t i = 0; i < count; ++i) shrunk += static_cast<double>(element<T>(values, i)) * kShrink;
  return shrunk / static_cast<double>(count) / kShrink;
}

// Moves the finite elements to the front of `kept`, counts the others, and returns the number of
// finite ones.
template <typename T>
size_t keep_finite(const std::byte* values, size_t count, T* kept, Statistics& result) {
  size_t finite = 0;
  for (size_t i = 0; i < count; ++i) {
    const T value = element<T>(values, i);
    if (magnitude(value) < infinity_bits<T>()) {
      kept[finite++] = value;
    } else if (std::isnan(value)) {
      ++result.nans;
    } else {
      ++(value > 0 ? result.positive_infinities : result.negative_infinities);
    }
  }
  return finite;
}

// Counts finite values by their sign and exponent bits.
template <typename T>
void count_octaves(const std::byte* values, size_t count, Histogram& histogram) {
  constexpr int kBias = std::numeric_limits<T>::max_exponent - 1;
  constexpr int kLast = static_cast<int>(Histogram::kBins) - 1;
  constexpr int kMantissa = Bits<T>::kMantissa;
  constexpr Word<T> kExponents = infinity_bits<T>() >> kMantissa;
  // Two tables, so that equal neighbours do not wait for each other.
  std::array<std::array<uint32_t, 2 * (kExponents + 1)>, 2> counts{};
  for (size_t i = 0; i < count; ++i) {
    const Word<T> bits = load_le<Word<T>>(values + i * sizeof(T));
    counts[i % 2][bits >> kMantissa] += (bits << 1) != 0;
  }
  for (size_t code = 0; code < counts[0].size(); ++code) {
    const uint64_t found = uint64_t{counts[0][code]} + counts[1][code];
    if (found == 0) continue;
    const int exponent = static_cast<int>(code & kExponents) - kBias;
    const int bin = std::clamp(exponent - Histogram::kFirstExponent, 0, kLast);
    std::vector<uint64_t>& bins = code > kExponents ? histogram.negative : histogram.positive;
    bins[static_cast<size_t>(bin)] += found;
  }
}

// Adds a piece of at most kPiece elements.
template <typename T>
void add_piece(const std::byte* values, size_t count, bool with_histogram, CpuCode code,
               Statistics& result) {
  const bool fast = code == CpuCode::best;
  Statistics piece;
  piece.count = count;
  Sums<T> sums;
  sum_portable(values, fast ? sum_fast(values, count, sums) : 0, count, sums);
  std::array<T, kPiece> kept;
  if (sums.largest >= infinity_bits<T>()) {
    count = keep_finite(values, count, kept.data(), piece);
    values = reinterpret_cast<const std::byte*>(kept.data());
    sums = {};
    sum_portable(values, fast ? sum_fast(values, count, sums) : 0, count, sums);
  }
  piece.zeros = sums.zeros;
  if (count > 0) {
    piece.min = static_cast<double>(sums.min) + 0.0;  // -0.0 + 0.0 is 0.0
    piece.max = static_cast<double>(sums.max) + 0.0;
    // Rounding may have moved the mean beyond the extremes, and so beyond float64's range.
    piece.mean = std::clamp(mean_of<T>(values, count, total_of(sums.lanes)), piece.min, piece.max);
    Lanes lanes{};
    const size_t done = fast ? square_fast<T>(values, count, piece.mean, lanes) : 0;
    square_portable<T>(values, done, count, piece.mean, lanes);
    piece.squared_deviations = total_of(lanes);
  }
  if (with_histogram) count_octaves<T>(values, count, result.histogram);
  result.add(piece);
}

void add_histogram(std::vector<uint64_t>& bins, const std::vector<uint64_t>& other) {
  if (bins.empty()) bins.resize(other.size());
  for (size_t i = 0; i < other.size(); ++i) bins[i] += other[i];
}

}  // namespace

Statistics::Statistics() : min(kNan), max(kNan) {}

double Statistics::sum() const {
  return mean * static_cast<double>(finite());
}

double Statistics::standard_deviation() const {
  return finite() < 2 ? kNan : std::sqrt(squared_deviations / static_cast<double>(finite() - 1));
}

double Statistics::norm() const {
  return std::sqrt(squared_deviations + mean * mean * static_cast<double>(finite()));
}

// Chan, Golub and LeVeque, Updating formulae and a pairwise algorithm for computing sample
// variances, 1979.
void Statistics::add(const Statistics& other) {
  if (finite() == 0) {
    min = other.min;
    max = other.max;
    mean = other.mean;
    squared_deviations = other.squared_deviations;
  } else if (other.finite() > 0) {
    const double before = static_cast<double>(finite());
    const double added = static_cast<double>(other.finite());
    const double delta = other.mean - mean;
    const double share = added / (before + added);
    min = std::min(min, other.min);
    max = std::max(max, other.max);
    const double between =
        std::isfinite(delta) ? mean + delta * share : mean * (1 - share) + other.mean * share;
    mean = std::clamp(between, min, max);
    squared_deviations += other.squared_deviations + delta * delta * before * share;
  }
  count += other.count;
  zeros += other.zeros;
  nans += other.nans;
  positive_infinities += other.positive_infinities;
  negative_infinities += other.negative_infinities;
  add_histogram(histogram.negative, other.histogram.negative);
  add_histogram(histogram.positive, other.histogram.positive);
}

Statistics statistics_of(DType dtype, std::span<const std::byte> bytes, bool with_histogram,
                         CpuCode code) {
  const DType part = real_part(dtype);
  const size_t size = size_of(part);
  const size_t count = bytes.size() / size;
  Statistics result;
  if (with_histogram) {
    result.histogram = {std::vector<uint64_t>(Histogram::kBins),
                        std::vector<uint64_t>(Histogram::kBins)};
  }
  std::array<double, kPiece> wide;
  std::byte* const widened = reinterpret_cast<std::byte*>(wide.data());
  for (size_t i = 0; i < count; i += kPiece) {
    const std::byte* piece = bytes.data() + i * size;
    const size_t some = std::min(kPiece, count - i);
    if (!float32_holds(part)) {
      to_float64(part, piece, wide.data(), some);
      add_piece<double>(widened, some, with_histogram, code, result);
    } else if (part == DType::float32) {
      add_piece<float>(piece, some, with_histogram, code, result);
    } else {
      convert(part, DType::float32, piece, widened, some);
      add_piece<float>(widened, some, with_histogram, code, result);
    }
  }
  return result;
}

}  // namespace dsckpt
