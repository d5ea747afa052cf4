#include "base/kernels.h"

#include <libdeflate.h>
#include <zlib.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "base/bytes.h"
#include "base/dtype_names.h"
#include "dsckpt/error.h"

#if defined(__x86_64__)
#include <cpuid.h>
#include <immintrin.h>
#endif

namespace dsckpt {

bool has_avx2_f16c() {
#if defined(__x86_64__)
  static const bool yes = [] {
    unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
    // Not every compiler's __builtin_cpu_supports knows "f16c".
    return __builtin_cpu_supports("avx2") && __get_cpuid(1, &eax, &ebx, &ecx, &edx) == 1 &&
           (ecx & bit_F16C) != 0;
  }();
  return yes;
#else
  return false;
#endif
}
namespace {

// Scalar conversions. float32 is the hub: every other type widens to it exactly, except float64,
// which is rounded.

float widen_bfloat16(uint16_t bits) {
  return std::bit_cast<float>(uint32_t{bits} << 16);
}

uint16_t narrow_bfloat16(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return static_cast<uint16_t>((bits >> 16) | 0x0040u);
  return static_cast<uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

float widen_float16(uint16_t bits) {
  const uint32_t sign = (bits & 0x8000u) << 16;
  const uint32_t exponent = (bits >> 10) & 0x1fu;
  const uint32_t mantissa = bits & 0x3ffu;
  if (exponent == 0x1fu) {
    return std::bit_cast<float>(sign | 0x7f800000u | (mantissa << 13) |
                                (mantissa != 0 ? 0x00400000u : 0u));
  }
  if (exponent == 0) {
    const float magnitude = static_cast<float>(mantissa) * 0x1p-24f;
    return std::bit_cast<float>(sign | std::bit_cast<uint32_t>(magnitude));
  }
  return std::bit_cast<float>(sign | ((exponent + 112) << 23) | (mantissa << 13));
}

uint16_t narrow_float16(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const uint32_t sign = (bits >> 16) & 0x8000u;
  const uint32_t magnitude = bits & 0x7fffffffu;
  if (magnitude > 0x7f800000u) {
    return static_cast<uint16_t>(sign | 0x7e00u | ((magnitude >> 13) & 0x1ffu));
  }
  // 65520 is halfway between the largest half and the next step: it and all above become infinite.
  if (magnitude >= 0x477ff000u) return static_cast<uint16_t>(sign | 0x7c00u);
  if (magnitude < 0x38800000u) {
    // Subnormal: adding 0.5 aligns the last kept bit with the last bit of a float's mantissa, so
    // the addition itself rounds to nearest even.
    const float shifted = std::bit_cast<float>(magnitude) + 0.5f;
    return static_cast<uint16_t>(sign | (std::bit_cast<uint32_t>(shifted) - 0x3f000000u));
  }
  const uint32_t rebased = magnitude - 0x38000000u;
  return static_cast<uint16_t>(sign | ((rebased + 0xfffu + ((rebased >> 13) & 1u)) >> 13));
}

// The 256 values of an 8-bit float: sign, `exponent_bits`, mantissa, with that bias. `special` is
// the meaning of the codes that are not plain numbers.
struct Float8 {
  int exponent_bits;
  int bias;
  enum class Special { ieee, only_all_ones_nan, negative_zero_nan } special;
};

float decode_float8(const Float8& format, uint8_t code) {
  const int mantissa_bits = 7 - format.exponent_bits;
  const int exponent_mask = (1 << format.exponent_bits) - 1;
  const int exponent = (code >> mantissa_bits) & exponent_mask;
  const int mantissa = code & ((1 << mantissa_bits) - 1);
  const float sign = (code & 0x80) != 0 ? -1.0f : 1.0f;
  const float nan = std::numeric_limits<float>::quiet_NaN();
  switch (format.special) {
    case Float8::Special::ieee:
      if (exponent == exponent_mask) {
        return mantissa != 0 ? nan : sign * std::numeric_limits<float>::infinity();
      }
      break;
    case Float8::Special::only_all_ones_nan:
      if ((code & 0x7f) == 0x7f) return nan;
      break;
    case Float8::Special::negative_zero_nan:
      if (code == 0x80) return nan;
      break;
  }
  const int significand = exponent == 0 ? mantissa : mantissa + (1 << mantissa_bits);
  return sign * std::ldexp(static_cast<float>(significand),
                           std::max(exponent, 1) - format.bias - mantissa_bits);
}

using Float8Table = std::array<float, 256>;

Float8Table make_table(const Float8& format) {
  Float8Table table{};
  for (size_t i = 0; i < table.size(); ++i) {
    table[i] = decode_float8(format, static_cast<uint8_t>(i));
  }
  return table;
}

// float8_e8m0fnu: a power of two, no sign, no zero; 255 is NaN.
Float8Table make_e8m0_table() {
  Float8Table table{};
  for (int i = 0; i < 255; ++i) table[static_cast<size_t>(i)] = std::ldexp(1.0f, i - 127);
  table[255] = std::numeric_limits<float>::quiet_NaN();
  return table;
}

const Float8Table& float8_table(DType dtype) {
  using enum Float8::Special;
  static const Float8Table e4m3fn = make_table({4, 7, only_all_ones_nan});
  static const Float8Table e5m2 = make_table({5, 15, ieee});
  static const Float8Table e4m3fnuz = make_table({4, 8, negative_zero_nan});
  static const Float8Table e5m2fnuz = make_table({5, 16, negative_zero_nan});
  static const Float8Table e8m0fnu = make_e8m0_table();
  switch (dtype) {
    case DType::float8_e4m3fn:
      return e4m3fn;
    case DType::float8_e5m2:
      return e5m2;
    case DType::float8_e4m3fnuz:
      return e4m3fnuz;
    case DType::float8_e5m2fnuz:
      return e5m2fnuz;
    default:
      return e8m0fnu;
  }
}

template <typename From, typename To, typename F>
void map(const std::byte* source, std::byte* target, size_t count, F&& f) {
  for (size_t i = 0; i < count; ++i) {
    store_le<To>(target + i * sizeof(To), f(load_le<From>(source + i * sizeof(From))));
  }
}

template <typename T>
float to_float(T value) {
  return static_cast<float>(value);
}

void widen(DType from, const std::byte* source, float* target, size_t count) {
  std::byte* out = reinterpret_cast<std::byte*>(target);
  switch (from) {
    case DType::float64:
      return map<double, float>(source, out, count, [](double v) { return static_cast<float>(v); });
    case DType::float32:
      std::memcpy(out, source, count * sizeof(float));
      return;
    case DType::float16:
      return map<uint16_t, float>(source, out, count, widen_float16);
    case DType::bfloat16:
      return map<uint16_t, float>(source, out, count, widen_bfloat16);
    case DType::int64:
      return map<int64_t, float>(source, out, count, to_float<int64_t>);
    case DType::int32:
      return map<int32_t, float>(source, out, count, to_float<int32_t>);
    case DType::int16:
      return map<int16_t, float>(source, out, count, to_float<int16_t>);
    case DType::int8:
      return map<int8_t, float>(source, out, count, to_float<int8_t>);
    case DType::uint64:
      return map<uint64_t, float>(source, out, count, to_float<uint64_t>);
    case DType::uint32:
      return map<uint32_t, float>(source, out, count, to_float<uint32_t>);
    case DType::uint16:
      return map<uint16_t, float>(source, out, count, to_float<uint16_t>);
    case DType::uint8:
      return map<uint8_t, float>(source, out, count, to_float<uint8_t>);
    case DType::boolean:
      return map<uint8_t, float>(source, out, count,
                                 [](uint8_t v) { return v != 0 ? 1.0f : 0.0f; });
    default: {
      const Float8Table& table = float8_table(from);
      return map<uint8_t, float>(source, out, count, [&](uint8_t v) { return table[v]; });
    }
  }
}

void narrow(DType to, const float* source, std::byte* target, size_t count) {
  const std::byte* in = reinterpret_cast<const std::byte*>(source);
  switch (to) {
    case DType::float32:
      std::memcpy(target, in, count * sizeof(float));
      return;
    case DType::float16:
      return map<float, uint16_t>(in, target, count, narrow_float16);
    default:
      return map<float, uint16_t>(in, target, count, narrow_bfloat16);
  }
}

#if defined(__x86_64__)

// The four conversions between float32 and the 16-bit types, eight elements at a time. Each returns
// the number of converted elements; the scalar code converts the rest.

__attribute__((target("avx2,f16c"))) size_t narrow_bfloat16_avx2(const std::byte* source,
                                                                 std::byte* target, size_t count) {
  const __m256i one = _mm256_set1_epi32(1);
  const __m256i half = _mm256_set1_epi32(0x7fff);
  const __m256i quiet = _mm256_set1_epi32(0x0040);
  size_t i = 0;
  for (; i + 8 <= count; i += 8) {
    const __m256 value = _mm256_loadu_ps(reinterpret_cast<const float*>(source + i * 4));
    const __m256i bits = _mm256_castps_si256(value);
    const __m256i high = _mm256_srli_epi32(bits, 16);
    const __m256i odd = _mm256_and_si256(high, one);
    const __m256i rounded =
        _mm256_srli_epi32(_mm256_add_epi32(bits, _mm256_add_epi32(half, odd)), 16);
    const __m256i nan = _mm256_castps_si256(_mm256_cmp_ps(value, value, _CMP_UNORD_Q));
    const __m256i words = _mm256_blendv_epi8(rounded, _mm256_or_si256(high, quiet), nan);
    const __m128i packed =
        _mm_packus_epi32(_mm256_castsi256_si128(words), _mm256_extracti128_si256(words, 1));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(target + i * 2), packed);
  }
  return i;
}

__attribute__((target("avx2,f16c"))) size_t narrow_float16_avx2(const std::byte* source,
                                                                std::byte* target, size_t count) {
  size_t i = 0;
  for (; i + 8 <= count; i += 8) {
    const __m256 value = _mm256_loadu_ps(reinterpret_cast<const float*>(source + i * 4));
    const __m128i packed = _mm256_cvtps_ph(value, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(target + i * 2), packed);
  }
  return i;
}

__attribute__((target("avx2,f16c"))) size_t widen_bfloat16_avx2(const std::byte* source,
                                                                std::byte* target, size_t count) {
  size_t i = 0;
  for (; i + 8 <= count; i += 8) {
    const __m128i words = _mm_loadu_si128(reinterpret_cast<const __m128i*>(source + i * 2));
    const __m256i bits = _mm256_slli_epi32(_mm256_cvtepu16_epi32(words), 16);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(target + i * 4), bits);
  }
  return i;
}

__attribute__((target("avx2,f16c"))) size_t widen_float16_avx2(const std::byte* source,
                                                               std::byte* target, size_t count) {
  size_t i = 0;
  for (; i + 8 <= count; i += 8) {
    const __m128i words = _mm_loadu_si128(reinterpret_cast<const __m128i*>(source + i * 2));
    _mm256_storeu_ps(reinterpret_cast<float*>(target + i * 4), _mm256_cvtph_ps(words));
  }
  return i;
}

size_t convert_fast(DType from, DType to, const std::byte* source, std::byte* target,
                    size_t count) {
  if (!has_avx2_f16c()) return 0;
  if (from == DType::float32 && to == DType::bfloat16) {
    return narrow_bfloat16_avx2(source, target, count);
  }
  if (from == DType::float32 && to == DType::float16) {
    return narrow_float16_avx2(source, target, count);
  }
  if (from == DType::bfloat16 && to == DType::float32) {
    return widen_bfloat16_avx2(source, target, count);
  }
  if (from == DType::float16 && to == DType::float32) {
    return widen_float16_avx2(source, target, count);
  }
  return 0;
}

#else

size_t convert_fast(DType, DType, const std::byte*, std::byte*, size_t) {
  return 0;
}

#endif

}  // namespace

bool can_convert(DType from, DType to) {
  if (is_opaque(from)) return false;
  if (is_floating_point(from)) {
    return to == DType::float32 || to == DType::float16 || to == DType::bfloat16;
  }
  const bool complex =
      from == DType::complex32 || from == DType::complex64 || from == DType::complex128;
  return to == DType::float32 && !complex;
}

void convert(DType from, DType to, const std::byte* source, std::byte* target, size_t count) {
  if (!can_convert(from, to)) {
    throw UnsupportedError({}, "cannot convert " + std::string(torch_name(from)) + " to " +
                                   std::string(torch_name(to)));
  }
  size_t done = convert_fast(from, to, source, target, count);
  std::array<float, 1024> chunk;
  while (done < count) {
    const size_t some = std::min(chunk.size(), count - done);
    widen(from, source + done * size_of(from), chunk.data(), some);
    narrow(to, chunk.data(), target + done * size_of(to), some);
    done += some;
  }
}

void add_float32(std::byte* sum, const std::byte* term, size_t count) {
  for (size_t i = 0; i < count * sizeof(float); i += sizeof(float)) {
    store_le(sum + i, load_le<float>(sum + i) + load_le<float>(term + i));
  }
}

void add_weighted(double* sum, DType dtype, const std::byte* terms, double weight, size_t count) {
  constexpr size_t kAtOnce = 1024;
  std::array<float, kAtOnce> wide;
  for (size_t done = 0; done < count;) {
    const size_t n = std::min(kAtOnce, count - done);
    auto* bytes = reinterpret_cast<std::byte*>(wide.data());
    const std::byte* from = terms + done * size_of(dtype);
    if (dtype == DType::float32) {
      std::memcpy(bytes, from, n * sizeof(float));
    } else {
      convert(dtype, DType::float32, from, bytes, n);
    }
    for (size_t i = 0; i < n; ++i) sum[done + i] += weight * static_cast<double>(wide[i]);
    done += n;
  }
}

void divide_float64(double* values, double divisor, size_t count) {
  for (size_t i = 0; i < count; ++i) values[i] /= divisor;
}

namespace {

// Rounds to odd: an inexact result gets an odd last bit. Rounding it to fewer bits afterwards then
// gives the same as rounding `value` itself (Boldo and Melquiond, When double rounding is odd).
float odd_float32(double value) {
  const auto nearest = static_cast<float>(value);
  const auto back = static_cast<double>(nearest);
  if (back == value || std::isnan(value)) return nearest;
  auto bits = std::bit_cast<uint32_t>(nearest);
  if (std::abs(back) > std::abs(value)) --bits;
  return std::bit_cast<float>(bits | 1);
}

#if defined(__x86_64__)

// The same for four elements at a time, in place. Returns the number of rounded elements.
__attribute__((target("avx2,f16c"))) size_t odd_float32_avx2(double* values, size_t count) {
  auto* target = reinterpret_cast<std::byte*>(values);
  const __m256d sign = _mm256_set1_pd(-0.0);
  const __m256i low_halves = _mm256_setr_epi32(0, 2, 4, 6, 0, 2, 4, 6);
  const auto narrow_mask = [&](__m256d mask) __attribute__((target("avx2,f16c"))) {
    return _mm256_castsi256_si128(
        _mm256_permutevar8x32_epi32(_mm256_castpd_si256(mask), low_halves));
  };
  size_t i = 0;
  for (; i + 4 <= count; i += 4) {
    const __m256d value = _mm256_loadu_pd(values + i);
    const __m128 nearest = _mm256_cvtpd_ps(value);
    const __m256d back = _mm256_cvtps_pd(nearest);
    const __m128i inexact = narrow_mask(_mm256_cmp_pd(back, value, _CMP_NEQ_OQ));
    const __m128i larger = narrow_mask(
        _mm256_cmp_pd(_mm256_andnot_pd(sign, back), _mm256_andnot_pd(sign, value), _CMP_GT_OQ));
    const __m128i bits = _mm_add_epi32(_mm_castps_si128(nearest), larger);
    const __m128i odd = _mm_or_si128(bits, _mm_srli_epi32(inexact, 31));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(target + i * sizeof(float)), odd);
  }
  return i;
}

#else

size_t odd_float32_avx2(double*, size_t) {
  return 0;
}

#endif

}  // namespace

void round_float64(double* values, DType to, std::byte* target, size_t count) {
  const auto store = [](std::byte* place, size_t i, float value) {
    std::memcpy(place + i * sizeof value, &value, sizeof value);
  };
  if (to == DType::float32) {
    for (size_t i = 0; i < count; ++i) store(target, i, static_cast<float>(values[i]));
    return;
  }
  auto* narrow_values = reinterpret_cast<std::byte*>(values);
  const size_t done = has_avx2_f16c() ? odd_float32_avx2(values, count) : 0;
  for (size_t i = done; i < count; ++i) store(narrow_values, i, odd_float32(values[i]));
  convert(DType::float32, to, narrow_values, target, count);
}

void add_squares(const double* values, size_t count, std::span<double, 4> sums) {
  std::array<double, 4> own{sums[0], sums[1], sums[2], sums[3]};
  size_t i = 0;
  for (; i + 4 <= count; i += 4) {
    for (size_t k = 0; k < 4; ++k) own[k] += values[i + k] * values[i + k];
  }
  for (size_t k = 0; i + k < count; ++k) own[k] += values[i + k] * values[i + k];
  std::copy(own.begin(), own.end(), sums.begin());
}

void multiply(double* values, double factor, size_t count) {
  for (size_t i = 0; i < count; ++i) values[i] *= factor;
}
void multiply_each(double* values, const double* factors, size_t count) {
  for (size_t i = 0; i < count; ++i) values[i] *= factors[i];
}

void divide_float32(std::byte* values, float divisor, size_t count) {
  for (size_t i = 0; i < count * sizeof(float); i += sizeof(float)) {
    store_le(values + i, load_le<float>(values + i) / divisor);
  }
}

uint32_t crc32(uint32_t crc, std::span<const std::byte> bytes) {
  // For a null pointer libdeflate returns the start value, whatever `crc` is.
  return bytes.empty() ? crc : libdeflate_crc32(crc, bytes.data(), bytes.size());
}

uint32_t crc32_combine(uint32_t crc_a, uint32_t crc_b, uint64_t length_b) {
  return static_cast<uint32_t>(::crc32_combine(crc_a, crc_b, static_cast<z_off_t>(length_b)));
}

}  // namespace dsckpt
