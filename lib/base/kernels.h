// Kernels: what happens to bytes on their way from an input to an output.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "dsckpt/dtype.h"

namespace dsckpt {

// True if convert() knows the pair: any floating type to float32, float16 or bfloat16, and integers
// and bool to float32.
bool can_convert(DType from, DType to);

// Converts `count` elements, rounding to nearest even as torch.Tensor.to does (float64 to a 16-bit
// type goes through float32, as in torch); values beyond the range become infinite, NaN stays NaN.
// The buffers must not overlap and need no alignment. Throws UnsupportedError for a pair that
// can_convert() denies.
void convert(DType from, DType to, const std::byte* source, std::byte* target, size_t count);

// sum[i] += term[i] and values[i] /= divisor, in float32 as torch does them on a CPU. Any
// alignment.
void add_float32(std::byte* sum, const std::byte* term, size_t count);
void divide_float32(std::byte* values, float divisor, size_t count);

// sum[i] += weight * term[i] and values[i] /= divisor in float64; `terms` are float32, bfloat16 or
// float16, which widen exactly. Products and sums are rounded one by one. Any alignment.
void add_weighted(double* sum, DType dtype, const std::byte* terms, double weight, size_t count);
void divide_float64(double* values, double divisor, size_t count);
// `values` as float32, bfloat16 or float16, each rounded once, to nearest even; convert() goes to
// 16 bit through float32 as torch does, and so rounds twice. Makes another use of `values`.
void round_float64(double* values, DType to, std::byte* target, size_t count);

// product[i * columns + j] = the sum of left[i * rank + k] * right[k * pitch + j] by rising k, in
// float64, where each product is exact: the result is the same on every processor.
void multiply_matrices(const float* left, const float* right, size_t rows, size_t rank,
                       size_t columns, size_t pitch, double* product);
// values[i] = base[i] + scale * values[i], rounded one by one.
void add_scaled(const float* base, double scale, double* values, size_t count);
// Adds the squares of `count` values to four sums, of every fourth each.
void add_squares(const double* values, size_t count, std::span<double, 4> sums);
// values[i] *= factor, or factors[i].
void multiply(double* values, double factor, size_t count);
void multiply_each(double* values, const double* factors, size_t count);

// CRC-32 as in zip (polynomial 0xEDB88320), continuing from `crc`; start with 0.
uint32_t crc32(uint32_t crc, std::span<const std::byte> bytes);
// The CRC-32 of A followed by B, from theirs and the length of B.
uint32_t crc32_combine(uint32_t crc_a, uint32_t crc_b, uint64_t length_b);

}  // namespace dsckpt
