// Reads a TensorSource into memory, for the few values that planning itself needs and for library
// users who want one tensor. Conversions do not use it: exec does their work.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "io/input_file.h"
#include "plan/tensor_source.h"

namespace dsckpt {

// Reads elements [first, first + count) of `source`, row-major, into `out`, which must have exactly
// that many bytes. Throws InconsistentError for a range outside the tensor, a cast source, and
// tensors that must be the same but differ. Throws the errors of reading.
void read_elements(const InputFiles& inputs, const TensorSource& source, int64_t first,
                   int64_t count, std::span<std::byte> out);

}  // namespace dsckpt
