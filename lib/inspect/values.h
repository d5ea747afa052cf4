// The values of a tensor, or of a part of it, as text.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>

#include "dsckpt/dtype.h"
#include "io/input_file.h"
#include "plan/tensor_source.h"

namespace dsckpt {

// Slices a tensor as torch does: "3", "-1", "2:5", ":8", ":" and "..." with commas between them,
// with or without brackets. An index drops its dimension, a range keeps it, and other dimensions
// stay whole. Ranges are cut to their dimension, as in Python. Throws UsageError for anything else,
// for more indices than dimensions, and for an index outside its dimension.
TensorSource sliced(const TensorSource& tensor, std::string_view slice);

// The element at `at` as the shortest decimal of the same value in its type: "0.1", "-3.0", "nan",
// "inf", "True". Complex numbers are "(1.0+2.0j)".
std::string element_text(DType dtype, const std::byte* at);

// Writes a tensor as nested brackets, a line for each innermost row; reads a part at a time. In
// dimensions longer than 2 * `edge` only the first and last `edge` elements are written, with "..."
// between them; 0 writes all. A tensor without elements is "[]". Throws the errors of reading.
void write_values(const InputFiles& inputs, const TensorSource& tensor, int64_t edge,
                  const std::function<void(std::string_view)>& write);

}  // namespace dsckpt
