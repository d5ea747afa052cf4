// A tensor that is cut into boxes, as torch.distributed.checkpoint stores those of any mesh.
#pragma once

#include <vector>

#include "plan/tensor_source.h"

namespace dsckpt {

struct TensorBox {
  Shape offsets;  // of its first element in the whole, a number for each dimension
  TensorSource value;
};

// The whole tensor. Boxes have as many dimensions as `shape` and one type, `dtype`, and come in any
// order; empty ones count for nothing. Throws InconsistentError for a box that reaches out of the
// tensor, for two that overlap and for a hole, by their offsets. Throws UnsupportedError for boxes
// whose cuts make a grid of more parts than is sane.
TensorSource join_boxes(DType dtype, const Shape& shape, std::vector<TensorBox> boxes);

}  // namespace dsckpt
