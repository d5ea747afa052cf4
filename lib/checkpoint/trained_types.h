// The types in which a run computes with its trained parameters.
#pragma once

#include <set>

#include "dsckpt/dtype.h"

namespace dsckpt {

class Checkpoint;

// The element types of the trained parameters in the files of the model; fp32 masters do not count.
// Those of the values where no file of a model is there. Stage 3 keeps empty tensors in `module`,
// whose type is that of the parameters.
std::set<DType> trained_types(const Checkpoint& checkpoint);

}  // namespace dsckpt
