#include "base/merged_tile.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector>

#include "base/dtype_names.h"
#include "base/kernels.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace dsckpt {
namespace {

// Merges the columns [begin, columns) of all rows: those that the blocks below left over, or all.
void merge_plain(const MergedTile& tile, size_t begin, double* merged) {
  for (size_t i = 0; i < tile.rows; ++i) {
    double* out = merged + i * tile.columns;
    std::fill(out + begin, out + tile.columns, 0.0);
    for (size_t k = 0; k < tile.rank; ++k) {
      const auto factor = static_cast<double>(tile.left[i * tile.rank + k]);
      const float* row = tile.right + k * tile.pitch;
      for (size_t j = begin; j < tile.columns; ++j) out[j] += factor * static_cast<double>(row[j]);
    }
    const float* base = tile.base + i * tile.columns;
    for (size_t j = begin; j < tile.columns; ++j) {
      out[j] = static_cast<double>(base[j]) + tile.scale * out[j];
    }
  }
}

// The same, rounded.
void merge_plain(const MergedTile& tile, size_t begin, DType to, std::byte* target) {
  std::array<double, 256> merged;
  for (size_t i = 0; i < tile.rows; ++i) {
    for (size_t j = begin; j < tile.columns; j += merged.size()) {
      const size_t at = i * tile.columns + j;
      const MergedTile part{.base = tile.base + at,
                            .scale = tile.scale,
                            .left = tile.left + i * tile.rank,
                            .right = tile.right + j,
                            .rows = 1,
                            .rank = tile.rank,
                            .columns = std::min(merged.size(), tile.columns - j),
                            .pitch = tile.pitch,
                            .right_norm = tile.right_norm};
      merge_plain(part, 0, merged.data());
      round_float64(merged.data(), to, target + at * size_of(to), part.columns);
    }
  }
}

#if defined(__x86_64__)

bool has_avx2_fma() {
  static const bool yes = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
  return yes;
}

// Where the elements of a tile go, four at a time.
struct IntoDoubles {
  double* merged;
  __attribute__((target("avx2,fma"))) void store(size_t at, __m256d values) const {
    _mm256_storeu_pd(merged + at, values);
  }
};
struct IntoFloats {
  std::byte* target;
  __attribute__((target("avx2,fma"))) void store(size_t at, __m256d values) const {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(target + at * sizeof(float)),
                     _mm_castps_si128(_mm256_cvtpd_ps(values)));
  }
};
struct IntoHalves {
  DType to;
  std::byte* target;
  __attribute__((target("avx2,fma"))) void store(size_t at, __m256d values) const {
    std::array<double, 4> merged;
    std::memcpy(merged.data(), &values, sizeof merged);
    round_float64(merged.data(), to, target + at * 2, merged.size());
  }
};

// Computes `Rows` x (4 * `Vectors`) elements from row `i` and column `j` on, in registers. `left`
// and `right` are widened; `right` has `rank` rows of 4 * `Vectors` elements.
template <size_t Rows, size_t Vectors, typename Into>
__attribute__((target("avx2,fma"))) inline void merge_block(const MergedTile& tile,
                                                            const double* left, const double* right,
                                                            size_t i, size_t j, const Into& into) {
  __m256d sums[Rows][Vectors];
#pragma GCC unroll 4
  for (size_t r = 0; r < Rows; ++r) {
#pragma GCC unroll 4
    for (size_t v = 0; v < Vectors; ++v) sums[r][v] = _mm256_setzero_pd();
  }
  const double* factors = left + i * tile.rank;
  for (size_t k = 0; k < tile.rank; ++k) {
    __m256d row[Vectors];
#pragma GCC unroll 4
    for (size_t v = 0; v < Vectors; ++v) row[v] = _mm256_loadu_pd(right + (k * Vectors + v) * 4);
#pragma GCC unroll 4
    for (size_t r = 0; r < Rows; ++r) {
      const __m256d factor = _mm256_broadcast_sd(factors + r * tile.rank + k);
#pragma GCC unroll 4
      for (size_t v = 0; v < Vectors; ++v) sums[r][v] = _mm256_fmadd_pd(factor, row[v], sums[r][v]);
    }
  }
  const __m256d scale = _mm256_set1_pd(tile.scale);
#pragma GCC unroll 4
  for (size_t r = 0; r < Rows; ++r) {
    const size_t at = (i + r) * tile.columns + j;
#pragma GCC unroll 4
    for (size_t v = 0; v < Vectors; ++v) {
      const __m256d base = _mm256_cvtps_pd(_mm_loadu_ps(tile.base + at + v * 4));
      into.store(at + v * 4, _mm256_add_pd(base, _mm256_mul_pd(scale, sums[r][v])));
    }
  }
}

// Computes all rows of 4 * Vectors columns.
template <size_t Vectors, typename Into>
__attribute__((target("avx2,fma"))) void merge_columns(const MergedTile& tile, const double* left,
                                                       size_t j, double* right, const Into& into) {
  for (size_t k = 0; k < tile.rank; ++k) {
    for (size_t v = 0; v < Vectors; ++v) {
      _mm256_storeu_pd(right + (k * Vectors + v) * 4,
                       _mm256_cvtps_pd(_mm_loadu_ps(tile.right + k * tile.pitch + j + v * 4)));
    }
  }
  size_t i = 0;
  for (; i + 4 <= tile.rows; i += 4) merge_block<4, Vectors>(tile, left, right, i, j, into);
  for (; i < tile.rows; ++i) merge_block<1, Vectors>(tile, left, right, i, j, into);
}

// Returns the number of columns that are done, in all rows.
template <typename Into>
size_t merge_avx2(const MergedTile& tile, const Into& into) {
  constexpr size_t kMost = 12;  // columns at once, limited by the number of registers
  const std::vector<double> left(tile.left, tile.left + tile.rows * tile.rank);
  std::vector<double> right(tile.rank * kMost);
  size_t j = 0;
  for (; j + 12 <= tile.columns; j += 12) {
    merge_columns<3>(tile, left.data(), j, right.data(), into);
  }
  for (; j + 4 <= tile.columns; j += 4) {
    merge_columns<1>(tile, left.data(), j, right.data(), into);
  }
  return j;
}

// 16 bits seldom need the sums of float64. float32 gives a value and how far it can be from the
// sum. Where both ends of this range are rounded to the same 16 bits, so is the sum.
// It decides less often the larger the rank is.
constexpr size_t kMostRankOfFloat32 = 64;

// For each row, the largest error of scale * sum in float32: of rank + 1 roundings and of
// `scale`, and of elements that are too small for float32's full precision. No sum of products is
// larger than the product of the norms.
std::vector<float> largest_errors(const MergedTile& tile) {
  const double roundings = 1.001 * static_cast<double>(tile.rank + 4);
  const double smallest = (1 + std::abs(tile.scale)) * roundings * 0x1p-120;
  std::vector<float> errors(tile.rows);
  for (size_t i = 0; i < tile.rows; ++i) {
    double squares = 0;
    for (size_t k = 0; k < tile.rank; ++k) {
      const double factor = double{tile.left[i * tile.rank + k]};
      squares += factor * factor;
    }
    const double most = std::abs(tile.scale) * std::sqrt(squares) * tile.right_norm;
    errors[i] = static_cast<float>(roundings * 0x1p-24 * most + smallest);
  }
  return errors;
}

// Eight elements in 16 bits, the same in float32, and half of the distance to the next element.
struct Narrowed {
  __m128i bits;
  __m256 values;
  __m256 half;
};

template <DType kTo>
__attribute__((target("avx2,fma,f16c"))) inline Narrowed narrow_eight(__m256 values) {
  const __m256i bits = _mm256_castps_si256(values);
  const __m256 power = _mm256_castsi256_ps(_mm256_and_si256(bits, _mm256_set1_epi32(0x7f800000)));
  if constexpr (kTo == DType::float16) {
    const __m128i narrow = _mm256_cvtps_ph(values, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    const __m256 half = _mm256_mul_ps(power, _mm256_set1_ps(0x1p-11F));
    return {narrow, _mm256_cvtph_ps(narrow), _mm256_max_ps(half, _mm256_set1_ps(0x1p-25F))};
  } else {
    const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
    const __m256i up = _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff));
    const __m256i high = _mm256_srli_epi32(_mm256_add_epi32(bits, up), 16);
    return {_mm_packus_epi32(_mm256_castsi256_si128(high), _mm256_extracti128_si256(high, 1)),
            _mm256_castsi256_ps(_mm256_slli_epi32(high, 16)),
            _mm256_mul_ps(power, _mm256_set1_ps(0x1p-8F))};
  }
}

// Eight elements in float64. `right` has `rank` rows that are `pitch` apart.
[[gnu::noinline]] __attribute__((target("avx2,fma"))) void merge_eight(const MergedTile& tile,
                                                                       const float* right,
                                                                       size_t pitch, size_t row,
                                                                       const float* base, DType to,
                                                                       std::byte* target) {
  __m256d sums[2] = {_mm256_setzero_pd(), _mm256_setzero_pd()};
  for (size_t k = 0; k < tile.rank; ++k) {
    const __m256d factor = _mm256_set1_pd(static_cast<double>(tile.left[row * tile.rank + k]));
    for (size_t v = 0; v < 2; ++v) {
      const __m256d each = _mm256_cvtps_pd(_mm_loadu_ps(right + k * pitch + v * 4));
      sums[v] = _mm256_fmadd_pd(factor, each, sums[v]);
    }
  }
  std::array<double, 8> merged;
  const __m256d scale = _mm256_set1_pd(tile.scale);
  for (size_t v = 0; v < 2; ++v) {
    const __m256d from = _mm256_cvtps_pd(_mm_loadu_ps(base + v * 4));
    _mm256_storeu_pd(merged.data() + v * 4, _mm256_add_pd(from, _mm256_mul_pd(scale, sums[v])));
  }
  round_float64(merged.data(), to, target, merged.size());
}

// Computes `Rows` x (8 * `Vectors`) elements. `right` has `rank` rows of 8 * `Vectors` elements.
template <DType kTo, size_t Rows, size_t Vectors>
__attribute__((target("avx2,fma,f16c"))) inline void merge_block16(const MergedTile& tile,
                                                                   const float* errors,
                                                                   const float* right, size_t i,
                                                                   size_t j, std::byte* target) {
  __m256 sums[Rows][Vectors];
#pragma GCC unroll 4
  for (size_t r = 0; r < Rows; ++r) {
#pragma GCC unroll 4
    for (size_t v = 0; v < Vectors; ++v) sums[r][v] = _mm256_setzero_ps();
  }
  const float* factors = tile.left + i * tile.rank;
  for (size_t k = 0; k < tile.rank; ++k) {
    __m256 row[Vectors];
#pragma GCC unroll 4
    for (size_t v = 0; v < Vectors; ++v) row[v] = _mm256_loadu_ps(right + (k * Vectors + v) * 8);
#pragma GCC unroll 4
    for (size_t r = 0; r < Rows; ++r) {
      const __m256 factor = _mm256_broadcast_ss(factors + r * tile.rank + k);
#pragma GCC unroll 4
      for (size_t v = 0; v < Vectors; ++v) sums[r][v] = _mm256_fmadd_ps(factor, row[v], sums[r][v]);
    }
  }
  const __m256 scale = _mm256_set1_ps(static_cast<float>(tile.scale));
  const __m256 sign = _mm256_set1_ps(-0.0F);
  // The rounding of the last sum, and as much for those of the comparison.
  const __m256 rounding = _mm256_set1_ps(0x1p-23F);
#pragma GCC unroll 4
  for (size_t r = 0; r < Rows; ++r) {
    const __m256 error = _mm256_broadcast_ss(errors + i + r);
#pragma GCC unroll 4
    for (size_t v = 0; v < Vectors; ++v) {
      const size_t at = (i + r) * tile.columns + j + v * 8;
      const __m256 value = _mm256_fmadd_ps(scale, sums[r][v], _mm256_loadu_ps(tile.base + at));
      const __m256 reach = _mm256_fmadd_ps(_mm256_andnot_ps(sign, value), rounding, error);
      const Narrowed narrow = narrow_eight<kTo>(value);
      const __m256 moved = _mm256_andnot_ps(sign, _mm256_sub_ps(value, narrow.values));
      // Below a power of two the next element is half as far. Values that are not finite, or
      // overflow, make it false.
      const __m256 most = _mm256_add_ps(_mm256_max_ps(moved, reach), reach);
      const __m256 sure = _mm256_cmp_ps(most, narrow.half, _CMP_LT_OQ);
      if (_mm256_movemask_ps(sure) == 0xff) [[likely]] {
        _mm_storeu_si128(reinterpret_cast<__m128i*>(target + at * 2), narrow.bits);
      } else {
        merge_eight(tile, right + v * 8, Vectors * 8, i + r, tile.base + at, kTo, target + at * 2);
      }
    }
  }
}

template <DType kTo, size_t Vectors>
__attribute__((target("avx2,fma,f16c"))) void merge_columns16(const MergedTile& tile,
                                                              const float* errors, size_t j,
                                                              float* right, std::byte* target) {
  for (size_t k = 0; k < tile.rank; ++k) {
    for (size_t v = 0; v < Vectors; ++v) {
      _mm256_storeu_ps(right + (k * Vectors + v) * 8,
                       _mm256_loadu_ps(tile.right + k * tile.pitch + j + v * 8));
    }
  }
  size_t i = 0;
  for (; i + 4 <= tile.rows; i += 4) {
    merge_block16<kTo, 4, Vectors>(tile, errors, right, i, j, target);
  }
  for (; i < tile.rows; ++i) merge_block16<kTo, 1, Vectors>(tile, errors, right, i, j, target);
}

// Returns the number of columns that are done, in all rows.
template <DType kTo>
size_t merge16_avx2(const MergedTile& tile, std::byte* target) {
  constexpr size_t kMost = 24;
  const std::vector<float> errors = largest_errors(tile);
  std::vector<float> right(tile.rank * kMost);
  size_t j = 0;
  for (; j + 24 <= tile.columns; j += 24) {
    merge_columns16<kTo, 3>(tile, errors.data(), j, right.data(), target);
  }
  for (; j + 8 <= tile.columns; j += 8) {
    merge_columns16<kTo, 1>(tile, errors.data(), j, right.data(), target);
  }
  return j;
}

// Return the number of columns that are done, in all rows.
size_t merge_quickly(const MergedTile& tile, double* merged) {
  return has_avx2_fma() ? merge_avx2(tile, IntoDoubles{merged}) : 0;
}
size_t merge_quickly(const MergedTile& tile, DType to, std::byte* target) {
  if (!has_avx2_fma()) return 0;
  if (to == DType::float32) return merge_avx2(tile, IntoFloats{target});
  if (!has_avx2_f16c() || tile.rank > kMostRankOfFloat32) {
    return merge_avx2(tile, IntoHalves{to, target});
  }
  return to == DType::float16 ? merge16_avx2<DType::float16>(tile, target)
                              : merge16_avx2<DType::bfloat16>(tile, target);
}

#else

size_t merge_quickly(const MergedTile&, double*) {
  return 0;
}
size_t merge_quickly(const MergedTile&, DType, std::byte*) {
  return 0;
}

#endif

}  // namespace

double largest_column_norm(const float* matrix, size_t rows, size_t columns) {
  std::vector<double> squares(columns);
  for (size_t k = 0; k < rows; ++k) {
    for (size_t j = 0; j < columns; ++j) {
      const double value = double{matrix[k * columns + j]};
      squares[j] += value * value;
    }
  }
  double most = 0;
  for (const double each : squares) {
    if (std::isnan(each)) return each;
    most = std::max(most, each);
  }
  return std::sqrt(most);
}

void merge_tile(const MergedTile& tile, double* merged) {
  const size_t done = merge_quickly(tile, merged);
  if (done < tile.columns) merge_plain(tile, done, merged);
}

void merge_rounded(const MergedTile& tile, DType to, std::byte* target) {
  const size_t done = merge_quickly(tile, to, target);
  if (done < tile.columns) merge_plain(tile, done, to, target);
}

}  // namespace dsckpt
