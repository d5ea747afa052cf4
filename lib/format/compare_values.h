// Looks at the values of tensors while a plan is made, for what nothing else tells. In pieces, so
// that memory does not grow with the tensors.
#pragma once

#include <utility>

#include "io/input_file.h"
#include "plan/tensor_source.h"

namespace dsckpt {

// Whether every element of `low` is the rounding of the same element of `master`. Shapes have to be
// equal and `master` convertible to the type of `low`. Throws what reading throws; so do the
// others.
bool is_rounding_of(const InputFiles& inputs, const TensorSource& low, const TensorSource& master);

// Whether both have the same type, shape and bytes.
bool same_values(const InputFiles& inputs, const TensorSource& a, const TensorSource& b);

// Two tensors of one shape, each without its repeats if both have the same: they are equal if these
// are.
std::pair<TensorSource, TensorSource> without_same_repeats(const TensorSource& a,
                                                           const TensorSource& b);

// Whether all elements have the same bytes; so have those of a tensor of one or no element.
bool is_constant(const InputFiles& inputs, const TensorSource& tensor);

}  // namespace dsckpt
