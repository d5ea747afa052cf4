// Elements of any type as numbers to calculate with.
#pragma once

#include <cstddef>
#include <limits>

#include "dsckpt/dtype.h"

namespace dsckpt {

// For a complex type, the type of its real and imaginary parts, which are neighbours in memory.
// Opaque elements count as unsigned integers of their bytes. Any other type is itself.
DType real_part(DType dtype);

// True if float32 can hold every value of `dtype`, which is not complex. Then convert() can convert
// it.
bool float32_holds(DType dtype);

// Converts elements of `dtype`, which is not complex, to float64. 64-bit integers are rounded; all
// others are exact. The source needs no alignment.
void to_float64(DType dtype, const std::byte* source, double* target, size_t count);

// Holds every value of every type that is not complex, and the distance of any two integers.
using Exact = long double;
static_assert(std::numeric_limits<Exact>::digits >= 64);

// True if float64 cannot hold every value of `dtype`, which is not complex.
bool exceeds_float64(DType dtype);

// Converts elements of a type that exceeds float64. The source needs no alignment.
void to_exact(DType dtype, const std::byte* source, Exact* target, size_t count);

}  // namespace dsckpt
