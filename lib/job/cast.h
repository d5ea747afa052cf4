// The values of a parameter in the types of the output.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "checkpoint/checkpoint.h"
#include "dsckpt/dtype.h"
#include "plan/tensor_source.h"

namespace dsckpt {

// Without padding, and as `target` if it is of a floating type; nullopt leaves each as it is
// stored. Elements without numbers of their own (packed quantised bytes) stay as they are if
// `target` is float32, with a note. Throws UnsupportedError for elements that cannot become
// `target`.
TensorSource cast(const Param& param, std::optional<DType> target, std::vector<std::string>& notes);

}  // namespace dsckpt
