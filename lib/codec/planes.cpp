#include "codec/planes.h"

#include <algorithm>
#include <array>
#include <bit>

namespace dsckpt {
namespace {

// Elements per step: they stay in the first-level cache while each of their planes is written.
constexpr size_t kBlock = 2048;

// Loops simple enough for the compiler to vectorise, with the widest vectors of the processor.
template <typename T, bool kRotated>
[[gnu::always_inline]] inline void split_loop(const std::byte* elements, std::byte* planes,
                                              size_t count) {
  std::array<T, kBlock> block;
  for (size_t begin = 0; begin < count; begin += kBlock) {
    const size_t size = std::min(kBlock, count - begin);
    std::memcpy(block.data(), elements + begin * sizeof(T), size * sizeof(T));
    if constexpr (kRotated) {
      for (size_t i = 0; i < size; ++i) {
        block[i] = static_cast<T>(block[i] << 1 | block[i] >> (8 * sizeof(T) - 1));
      }
    }
    for (size_t p = 0; p < sizeof(T); ++p) {
      std::byte* const plane = planes + p * count + begin;
      const unsigned shift = static_cast<unsigned>(8 * p);
      for (size_t i = 0; i < size; ++i) plane[i] = static_cast<std::byte>(block[i] >> shift);
    }
  }
}

template <typename T, bool kRotated>
[[gnu::always_inline]] inline void join_loop(std::span<const std::byte* const> planes,
                                             std::byte* elements, size_t count) {
  std::array<T, kBlock> block;
  for (size_t begin = 0; begin < count; begin += kBlock) {
    const size_t size = std::min(kBlock, count - begin);
    std::array<const std::byte*, sizeof(T)> at;
    for (size_t p = 0; p < sizeof(T); ++p) at[p] = planes[p] + begin;
    for (size_t i = 0; i < size; ++i) {
      T value = 0;
      for (size_t p = 0; p < sizeof(T); ++p) {
        value = static_cast<T>(value | static_cast<T>(static_cast<T>(at[p][i]) << (8 * p)));
      }
      if constexpr (kRotated) {
        value = static_cast<T>(value >> 1 | value << (8 * sizeof(T) - 1));
      }
      block[i] = value;
    }
    std::memcpy(elements + begin * sizeof(T), block.data(), size * sizeof(T));
  }
}

#if defined(__x86_64__)
bool has_avx2() {
  static const bool yes = __builtin_cpu_supports("avx2");
  return yes;
}

template <typename T, bool kRotated>
[[gnu::target("avx2")]] void split_avx2(const std::byte* elements, std::byte* planes,
                                        size_t count) {
  split_loop<T, kRotated>(elements, planes, count);
}

template <typename T, bool kRotated>
[[gnu::target("avx2")]] void join_avx2(std::span<const std::byte* const> planes,
                                       std::byte* elements, size_t count) {
  join_loop<T, kRotated>(planes, elements, count);
}
#endif

template <typename T, bool kRotated>
void split(const std::byte* elements, std::byte* planes, size_t count) {
#if defined(__x86_64__)
  if (has_avx2()) return split_avx2<T, kRotated>(elements, planes, count);
#endif
  split_loop<T, kRotated>(elements, planes, count);
}

template <typename T, bool kRotated>
void join(std::span<const std::byte* const> planes, std::byte* elements, size_t count) {
#if defined(__x86_64__)
  if (has_avx2()) return join_avx2<T, kRotated>(planes, elements, count);
#endif
  join_loop<T, kRotated>(planes, elements, count);
}

}  // namespace

bool PlaneLayout::is_valid() const {
  return std::has_single_bit(width) && width <= kMostPlanes &&
         (!rotated || width == 2 || width == 4);
}

PlaneLayout plane_layout_of(DType dtype) {
  switch (dtype) {
    case DType::float32:
    case DType::complex64:
      return {4, true};
    case DType::bfloat16:
      return {2, true};
    case DType::complex32:
      return {2, false};
    case DType::complex128:
      return {8, false};
    default:
      return {static_cast<uint8_t>(size_of(dtype)), false};
  }
}

void split_planes(PlaneLayout layout, ByteSpan elements, std::span<std::byte> planes) {
  const size_t count = elements.size() / layout.width;
  const auto with = [&](auto function) { function(elements.data(), planes.data(), count); };
  switch (layout.width) {
    case 2:
      return with(layout.rotated ? split<uint16_t, true> : split<uint16_t, false>);
    case 4:
      return with(layout.rotated ? split<uint32_t, true> : split<uint32_t, false>);
    case 8:
      return with(split<uint64_t, false>);
    default:
      std::copy(elements.begin(), elements.end(), planes.begin());
  }
}

void join_planes(PlaneLayout layout, std::span<const std::byte* const> planes,
                 std::span<std::byte> elements) {
  const size_t count = elements.size() / layout.width;
  const auto with = [&](auto function) { function(planes, elements.data(), count); };
  switch (layout.width) {
    case 2:
      return with(layout.rotated ? join<uint16_t, true> : join<uint16_t, false>);
    case 4:
      return with(layout.rotated ? join<uint32_t, true> : join<uint32_t, false>);
    case 8:
      return with(join<uint64_t, false>);
    default:
      std::copy_n(planes[0], count, elements.begin());
  }
}

}  // namespace dsckpt
