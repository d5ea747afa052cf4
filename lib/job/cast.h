// The values of a parameter as what is written has them.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "checkpoint/checkpoint.h"
#include "dsckpt/dtype.h"
#include "plan/tensor_source.h"

namespace dsckpt {

// Without padding, and as `target` if it is of a floating type; nullopt leaves each as it is
// stored. What has no numbers of its own (packed quantised bytes) stays as it is where float32 is
// asked for, as it is unless something else is, with a note. Throws UnsupportedError for elements
// that cannot become `target`.
TensorSource cast(const Param& param, std::optional<DType> target, std::vector<std::string>& notes);

}  // namespace dsckpt
