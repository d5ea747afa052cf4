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

// Torch's indexing of a tensor: "3", "-1", "2:5", ":8", ":" and "..." with commas between them, in
// brackets or not. An index drops its dimension, a range keeps it, what is not named is whole.
// Throws UsageError for anything else, for more indices than dimensions, and for an index outside
// its dimension; ranges are cut to it, as Python does.
TensorSource sliced(const TensorSource& tensor, std::string_view slice);

// The element at `at` as the shortest decimal that is the same value in its type: "0.1", "-3.0",
// "nan", "inf", "True"; complex numbers as "(1.0+2.0j)".
std::string element_text(DType dtype, const std::byte* at);

// Writes a tensor as nested brackets, a line for each innermost row, reading a part at a time. Of
// dimensions longer than 2 * `edge` only the first and last `edge` are written, with "..." between
// them; 0 writes all. A tensor without elements is "[]". Throws what reading throws.
void write_values(const InputFiles& inputs, const TensorSource& tensor, int64_t edge,
                  const std::function<void(std::string_view)>& write);

}  // namespace dsckpt
