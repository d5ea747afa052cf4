// Kernels: operations on bytes on their way from an input to an output.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "dsckpt/dtype.h"

namespace dsckpt {

// Tells whether the processor has AVX2 and F16C.
bool has_avx2_f16c();

// True if convert() supports the pair: any floating type to float32, float16 or bfloat16, and
// integers and bool to float32.
bool can_convert(DType from, DType to);

// Converts `count` elements, rounding to nearest even as torch.Tensor.to does. As in torch, float64
// goes through float32 to a 16-bit type. Values out of range become infinite, NaN stays NaN. The
// buffers must not overlap and need no alignment. Throws UnsupportedError for a pair that
// can_convert() denies.
void convert(DType from, DType to, const std::byte* source, std::byte* target, size_t count);

// sum[i] += term[i] and values[i] /= divisor, in float32 as torch computes them on a CPU. Any
// alignment.
void add_float32(std::byte* sum, const std::byte* term, size_t count);
void divide_float32(std::byte* values, float divisor, size_t count);

// sum[i] += weight * term[i] and values[i] /= divisor, in float64. `terms` are float32, bfloat16 or
// float16, which widen exactly. Each product and each sum is rounded. Any alignment.
void add_weighted(double* sum, DType dtype, const std::byte* terms, double weight, size_t count);
void divide_float64(double* values, double divisor, size_t count);
// Rounds `values` to float32, bfloat16 or float16, once and to nearest even. (convert() goes
// through float32 to 16 bits, as torch does, and so rounds twice.) Overwrites `values`.
void round_float64(double* values, DType to, std::byte* target, size_t count);

// Adds the squares of `count` values to four sums: each takes every fourth value.
void add_squares(const double* values, size_t count, std::span<double, 4> sums);
// values[i] *= factor, or factors[i].
void multiply(double* values, double factor, size_t count);
void multiply_each(double* values, const double* factors, size_t count);

// CRC-32 as in zip (polynomial 0xEDB88320), continuing from `crc`; start with 0.
uint32_t crc32(uint32_t crc, std::span<const std::byte> bytes);
// The CRC-32 of A followed by B, from theirs and the length of B.
uint32_t crc32_combine(uint32_t crc_a, uint32_t crc_b, uint64_t length_b);

}  // namespace dsckpt
