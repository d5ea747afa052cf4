// Differences between two vectors of elements.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "base/widen.h"
#include "dsckpt/dtype.h"

namespace dsckpt {

// Elements at any alignment.
struct Elements {
  DType dtype;
  std::span<const std::byte> bytes;
};

// The tolerance |a - b| <= absolute + relative * |b|, as in torch.allclose.
struct Tolerance {
  double absolute = 0;
  double relative = 0;

  static void fields(auto& codec, auto& self) { codec(self.absolute, self.relative); }
};

// Differences over pairs of elements. A complex element is two: its real and its imaginary part.
// NaN equals itself bit for bit and is infinitely far from everything else. Numbers that are
// float64 for floating types are exact for integers.
struct Difference {
  uint64_t count = 0;
  uint64_t differing = 0;   // in at least one bit: -0.0 differs from 0.0
  uint64_t outside = 0;     // differing, and not within the tolerance if there is one
  Exact max_absolute = 0;   // |a - b|
  double max_relative = 0;  // |a - b| / |b|; infinite where only b is zero
  // Floating types only: the largest number of steps, from one number of the type to the next,
  // between a and b. No step between -0.0 and 0.0, one from the largest number to infinity. Without
  // NaNs.
  uint64_t max_ulps = 0;
  // The first pair with the largest |a - b|, if any pair differs in bits.
  int64_t index = -1;
  Exact a = 0;
  Exact b = 0;
  // Floating types only: the sums of (b - a)^2, a^2, b^2 and a * b over all pairs, in float64. They
  // are not finite if an element is not, or if they exceed float64. Their last digits depend on the
  // order in which parts are added.
  double squared_change = 0;
  double squared_a = 0;
  double squared_b = 0;
  double product = 0;

  // |b - a| / |a| of the vectors; infinite if only a is zero, NaN if the sums are not finite.
  double relative_change() const;
  // The cosine of the angle between the vectors, at most 1. NaN if one is zero or the sums are not
  // finite.
  double cosine() const;

  // Adds the pairs of `other`, which come after the pairs of this one.
  void add(const Difference& other);
};

// Compares `a` and `b`, equally many elements, after conversion to `as` with convert(). No
// conversion is needed if `as` is their own type. The first pair has the index `first`. Throws
// UnsupportedError for a conversion that can_convert() denies.
Difference difference_of(const Elements& a, const Elements& b, DType as, int64_t first,
                         const std::optional<Tolerance>& tolerance = {});

}  // namespace dsckpt
