// Elements of any type as numbers that arithmetic is done with.
#pragma once

#include <cstddef>
#include <limits>

#include "dsckpt/dtype.h"

namespace dsckpt {

// Of a complex type, the type of the real and of the imaginary part, which follow each other in
// memory. Opaque elements count as the unsigned integers that their bytes are. Any other type is
// itself.
DType real_part(DType dtype);

// Whether float32 has every value of `dtype`, which is not complex; convert() makes it then.
bool float32_holds(DType dtype);

// Elements of `dtype`, which is not complex, as float64. 64-bit integers are rounded; all else is
// exact. The source needs no alignment.
void to_float64(DType dtype, const std::byte* source, double* target, size_t count);

// Has every value of every type that is not complex, and the distance of any two integers.
using Exact = long double;
static_assert(std::numeric_limits<Exact>::digits >= 64);

// Whether float64 has not every value of `dtype`, which is not complex.
bool exceeds_float64(DType dtype);

// Elements of a type that exceeds float64. The source needs no alignment.
void to_exact(DType dtype, const std::byte* source, Exact* target, size_t count);

}  // namespace dsckpt
