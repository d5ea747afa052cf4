// Compares the values of tensors while a plan is made, where nothing else tells. It does so in
// pieces, so that memory does not grow with the tensors.
#pragma once

#include <utility>

#include "io/input_file.h"
#include "plan/tensor_source.h"

namespace dsckpt {

// True if every element of `low` is the rounding of the same element of `master`. Shapes must be
// equal, and `master` must be convertible to the type of `low`. All functions here throw the errors
// of reading.
bool is_rounding_of(const InputFiles& inputs, const TensorSource& low, const TensorSource& master);

// True if both have the same type, shape and bytes.
bool same_values(const InputFiles& inputs, const TensorSource& a, const TensorSource& b);

// Two tensors of one shape, each without its repeats if both have the same ones. They are equal if
// and only if the originals are.
std::pair<TensorSource, TensorSource> without_same_repeats(const TensorSource& a,
                                                           const TensorSource& b);

// True if all elements have the same bytes, as for a tensor of one or no element.
bool is_constant(const InputFiles& inputs, const TensorSource& tensor);

}  // namespace dsckpt
