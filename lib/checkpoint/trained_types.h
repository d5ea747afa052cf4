// The types in which a run computes with its trained parameters.
#pragma once

#include <set>

#include "dsckpt/dtype.h"

namespace dsckpt {

class Checkpoint;

// The element types of the trained parameters in the first file of the model that has some; fp32
// masters do not count. Stage 3 keeps empty tensors in `module`, whose type is that of the
// parameters. Pipelines have them in the files of their layers: the first one tells them. Without
// files of a model they are the types of the values.
std::set<DType> trained_types(const Checkpoint& checkpoint);

}  // namespace dsckpt
