#include "base/difference.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>
#include <type_traits>

#include "base/bytes.h"
#include "base/kernels.h"
#include "base/widen.h"

namespace dsckpt {
namespace {

// Elements per step. Whole steps are compared first; only a step that differs is looked at element
// by element.
constexpr size_t kPiece = 1024;

uint64_t bits_at(const std::byte* at, size_t size) {
  switch (size) {
    case 1:
      return load_le<uint8_t>(at);
    case 2:
      return load_le<uint16_t>(at);
    case 4:
      return load_le<uint32_t>(at);
    default:
      return load_le<uint64_t>(at);
  }
}

// Floating types have a sign bit and a magnitude that grows with the number. float8_e8m0fnu has no
// sign.
uint64_t ulps_between(DType dtype, uint64_t a, uint64_t b) {
  if (dtype == DType::float8_e8m0fnu) return a > b ? a - b : b - a;
  const uint64_t sign = uint64_t{1} << (size_of(dtype) * 8 - 1);
  const uint64_t size_a = a & (sign - 1);
  const uint64_t size_b = b & (sign - 1);
  if ((a & sign) != (b & sign)) return size_a + size_b;
  return size_a > size_b ? size_a - size_b : size_b - size_a;
}

template <typename Wide>
constexpr Wide kInfinity = std::numeric_limits<Wide>::infinity();

template <typename Wide>
Wide distance(Wide a, Wide b) {
  if (a == b) return 0;  // infinities too
  const Wide between = std::abs(a - b);
  return std::isnan(between) ? kInfinity<Wide> : between;
}

template <typename Wide>
bool is_within(Wide absolute, Wide b, const std::optional<Tolerance>& tolerance) {
  if (!tolerance || absolute == kInfinity<Wide>) return false;
  const Wide share = b == 0 ? 0 : tolerance->relative * std::abs(b);  // not infinity times 0
  return absolute <= tolerance->absolute + share;
}

// Adds a pair whose bits differ.
template <typename Wide>
void add_pair(Wide a, Wide b, int64_t index, const std::optional<Tolerance>& tolerance,
              Difference& result) {
  const Wide absolute = distance(a, b);
  const double relative = absolute == 0 ? 0 : static_cast<double>(absolute / std::abs(b));
  ++result.differing;
  result.outside += !is_within(absolute, b, tolerance);
  result.max_relative =
      std::max(result.max_relative, std::isnan(relative) ? kInfinity<double> : relative);
  if (result.index < 0 || absolute > result.max_absolute) {
    result.index = index;
    result.a = a;
    result.b = b;
    result.max_absolute = absolute;
  }
}

void widen(DType dtype, const std::byte* source, double* target, size_t count) {
  to_float64(dtype, source, target, count);
}
void widen(DType dtype, const std::byte* source, Exact* target, size_t count) {
  to_exact(dtype, source, target, count);
}

// Sums in several lanes, which the processor adds independently of each other.
void add_sums(const double* a, const double* b, size_t count, Difference& result) {
  constexpr size_t kLanes = 8;
  std::array<std::array<double, kLanes>, 4> sums{};
  const auto add = [&](size_t lane, double of_a, double of_b) {
    const double change = of_b - of_a;
    sums[0][lane] += change * change;
    sums[1][lane] += of_a * of_a;
    sums[2][lane] += of_b * of_b;
    sums[3][lane] += of_a * of_b;
  };
  size_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    for (size_t lane = 0; lane < kLanes; ++lane) add(lane, a[i + lane], b[i + lane]);
  }
  for (; i < count; ++i) add(i % kLanes, a[i], b[i]);
  const auto total = [](const std::array<double, kLanes>& lanes) {
    return std::accumulate(lanes.begin(), lanes.end(), 0.0);
  };
  result.squared_change += total(sums[0]);
  result.squared_a += total(sums[1]);
  result.squared_b += total(sums[2]);
  result.product += total(sums[3]);
}

// Adds at most kPiece pairs of one type. `Wide` represents all values of that type.
template <typename Wide>
void add_pairs(DType dtype, const std::byte* a, const std::byte* b, size_t count, int64_t first,
               const std::optional<Tolerance>& tolerance, Difference& result) {
  const size_t size = size_of(dtype);
  std::array<Wide, kPiece> wide_a;
  std::array<Wide, kPiece> wide_b;
  widen(dtype, a, wide_a.data(), count);
  widen(dtype, b, wide_b.data(), count);
  const bool floating = is_floating_point(dtype);
  if constexpr (std::is_same_v<Wide, double>) {
    if (floating) add_sums(wide_a.data(), wide_b.data(), count, result);
  }
  for (size_t i = 0; i < count; ++i) {
    const uint64_t bits_a = bits_at(a + i * size, size);
    const uint64_t bits_b = bits_at(b + i * size, size);
    if (bits_a == bits_b) continue;
    add_pair(wide_a[i], wide_b[i], first + static_cast<int64_t>(i), tolerance, result);
    if (floating && !std::isnan(wide_a[i]) && !std::isnan(wide_b[i])) {
      result.max_ulps = std::max(result.max_ulps, ulps_between(dtype, bits_a, bits_b));
    }
  }
}

void add_piece(DType dtype, const std::byte* a, const std::byte* b, size_t count, int64_t first,
               const std::optional<Tolerance>& tolerance, Difference& result) {
  if (std::memcmp(a, b, count * size_of(dtype)) == 0) {
    if (!is_floating_point(dtype)) return;
    std::array<double, kPiece> wide;
    to_float64(dtype, a, wide.data(), count);
    return add_sums(wide.data(), wide.data(), count, result);
  }
  const auto add = exceeds_float64(dtype) ? add_pairs<Exact> : add_pairs<double>;
  add(dtype, a, b, count, first, tolerance, result);
}

// Returns the elements [first, first + count) as type `as`. `buffer` receives them if they must be
// converted.
const std::byte* piece_of(const Elements& elements, size_t first, size_t count, DType as,
                          std::byte* buffer) {
  const std::byte* piece = elements.bytes.data() + first * size_of(elements.dtype);
  if (elements.dtype == as) return piece;
  convert(elements.dtype, as, piece, buffer, count);
  return buffer;
}

}  // namespace

void Difference::add(const Difference& other) {
  count += other.count;
  differing += other.differing;
  outside += other.outside;
  if (other.index >= 0 && (index < 0 || other.max_absolute > max_absolute)) {
    index = other.index;
    a = other.a;
    b = other.b;
    max_absolute = other.max_absolute;
  }
  max_relative = std::max(max_relative, other.max_relative);
  max_ulps = std::max(max_ulps, other.max_ulps);
  squared_change += other.squared_change;
  squared_a += other.squared_a;
  squared_b += other.squared_b;
  product += other.product;
}

double Difference::relative_change() const {
  return squared_change == 0 && squared_a == 0 ? 0 : std::sqrt(squared_change / squared_a);
}

double Difference::cosine() const {
  return std::clamp(product / (std::sqrt(squared_a) * std::sqrt(squared_b)), -1.0, 1.0);
}

Difference difference_of(const Elements& a, const Elements& b, DType as, int64_t first,
                         const std::optional<Tolerance>& tolerance) {
  const bool converts = a.dtype != as || b.dtype != as;
  // Complex elements are never converted: each is compared as two real ones.
  const DType part = real_part(as);
  const Elements parts_a{converts ? a.dtype : part, a.bytes};
  const Elements parts_b{converts ? b.dtype : part, b.bytes};
  const size_t count = a.bytes.size() / size_of(parts_a.dtype);
  Difference result;
  result.count = count;
  if (count == 0) return result;  // there may be no buffers at all
  std::array<std::byte, kPiece * sizeof(float)> buffer_a;
  std::array<std::byte, kPiece * sizeof(float)> buffer_b;
  for (size_t i = 0; i < count; i += kPiece) {
    const size_t some = std::min(kPiece, count - i);
    add_piece(part, piece_of(parts_a, i, some, part, buffer_a.data()),
              piece_of(parts_b, i, some, part, buffer_b.data()), some,
              first + static_cast<int64_t>(i), tolerance, result);
  }
  return result;
}

}  // namespace dsckpt
