// How far two vectors of elements are apart.
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

// What is close enough: |a - b| <= absolute + relative * |b|, as torch.allclose has it.
struct Tolerance {
  double absolute = 0;
  double relative = 0;
};

// Of pairs of elements. A complex element is two, its real and its imaginary part. NaN equals
// itself bit for bit and is infinitely far from all else. What is done in float64 for floating
// types is exact for integers.
struct Difference {
  uint64_t count = 0;
  uint64_t differing = 0;   // in at least one bit: -0.0 differs from 0.0
  uint64_t outside = 0;     // differing, and not within the tolerance if there is one
  Exact max_absolute = 0;   // |a - b|
  double max_relative = 0;  // |a - b| / |b|; infinite where only b is zero
  // Floating types only: the most steps from one number of the type to the next that lie between a
  // and b. None between -0.0 and 0.0, one from the largest number to infinity. Without NaNs.
  uint64_t max_ulps = 0;
  // The first of the pairs with the largest |a - b|, if any differ in bits.
  int64_t index = -1;
  Exact a = 0;
  Exact b = 0;
  // Floating types only: over all pairs the sums of (b - a)^2, a^2, b^2 and a * b in float64. Not
  // finite if an element is not, or beyond float64's range. The order in which parts are added
  // matters in the last digits.
  double squared_change = 0;
  double squared_a = 0;
  double squared_b = 0;
  double product = 0;

  // |b - a| / |a| of the vectors; infinite where only a is zero. NaN where the sums are not finite.
  double relative_change() const;
  // Of the angle between the vectors, at most 1; NaN where one is zero or the sums are not finite.
  double cosine() const;

  // Makes it the difference of its pairs and of those of `other`, which come after them.
  void add(const Difference& other);
};

// Compares `a` and `b`, as many elements, after conversion to `as` (see convert(); the type itself
// needs none). `first` is the index of the first pair. Throws UnsupportedError for a conversion
// that can_convert() denies.
Difference difference_of(const Elements& a, const Elements& b, DType as, int64_t first,
                         const std::optional<Tolerance>& tolerance = {});

}  // namespace dsckpt
