// Byte planes: the first bytes of all elements, then the second bytes, and so on.
//
// The bytes of a plane are alike: all exponents, or all low bytes of mantissas. So each plane
// compresses as well as its kind of byte allows.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "base/bytes.h"
#include "dsckpt/dtype.h"

namespace dsckpt {

// The way that elements are split into planes.
struct PlaneLayout {
  static constexpr uint8_t kMostPlanes = 8;

  uint8_t width = 1;  // bytes of an element: 1, 2, 4 or 8; as many planes
  // If true, the bits of the elements are rotated left by one first. The sign moves behind the
  // mantissa, and the eight exponent bits of a float32 or bfloat16 become one byte. Width 2 and 4
  // only.
  bool rotated = false;

  bool operator==(const PlaneLayout&) const = default;
  bool is_valid() const;
};

// The layout for elements of a type. A complex number counts as two elements.
PlaneLayout plane_layout_of(DType dtype);

// Splits `elements` into planes, from the lowest byte of the elements on. Plane p of n elements is
// planes[p * n, (p + 1) * n). The length of `elements` is a multiple of the width, and `planes` is
// as long. They must not overlap. Any alignment.
void split_planes(PlaneLayout layout, ByteSpan elements, std::span<std::byte> planes);
// The reverse, for planes in separate places: `planes[p]` has one byte for each element.
void join_planes(PlaneLayout layout, std::span<const std::byte* const> planes,
                 std::span<std::byte> elements);

}  // namespace dsckpt
