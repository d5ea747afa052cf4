// Reading a TensorSource into memory, for the few values that planning itself needs and for users
// of the library who want one tensor. Conversions do not go through here: that is exec's work.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "io/input_file.h"
#include "plan/tensor_source.h"

namespace dsckpt {

// Reads elements [first, first + count) of `source`, row-major, into `out`, which must be exactly
// that many bytes. Throws InconsistentError for a range outside the tensor, a source that is
// cast and tensors that must be the same but are not, and what reading throws.
void read_elements(const InputFiles& inputs, const TensorSource& source, int64_t first,
                   int64_t count, std::span<std::byte> out);

}  // namespace dsckpt
