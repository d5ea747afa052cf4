// Byte planes: the first bytes of all elements, then the second bytes, and so on.
//
// The bytes of a plane are alike (all exponents, all low mantissa bytes), so each plane is as small
// as its own kind of byte allows.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "base/bytes.h"
#include "dsckpt/dtype.h"

namespace dsckpt {

// How elements are taken apart.
struct PlaneLayout {
  static constexpr uint8_t kMostPlanes = 8;

  uint8_t width = 1;  // bytes of an element: 1, 2, 4 or 8; as many planes
  // The elements' bits are rotated left by one first: the sign goes behind the mantissa, and the
  // eight bits of the exponent of a float32 or bfloat16 are one byte. Width 2 and 4 only.
  bool rotated = false;

  bool operator==(const PlaneLayout&) const = default;
  bool is_valid() const;
};

// What suits the elements of a type. Complex numbers are two elements.
PlaneLayout plane_layout_of(DType dtype);

// Plane p of n elements is planes[p * n, (p + 1) * n), the lowest byte of the elements first.
// `elements` is a multiple of the width long, `planes` as long as it; they must not overlap. Any
// alignment.
void split_planes(PlaneLayout layout, ByteSpan elements, std::span<std::byte> planes);
// The reverse, of planes in different places: `planes[p]` are as many bytes as there are elements.
void join_planes(PlaneLayout layout, std::span<const std::byte* const> planes,
                 std::span<std::byte> elements);

}  // namespace dsckpt
