// An optimizer's numbers given to the parameters of a model by their order.
#pragma once

#include <cstddef>
#include <optional>
#include <vector>

#include "dsckpt/dtype.h"

namespace dsckpt {

// A parameter of the optimizer, with the shape of its states if it has any.
struct OwnedIndex {
  size_t index;
  std::optional<Shape> shape;
};

// For each candidate, a parameter by its shape, the optimizer's number, or none if it is frozen, so
// that every group comes in the candidates' order and shapes agree; nullopt if there is no way or
// more than one. torch/optim/optimizer.py state_dict numbers them so.
std::optional<std::vector<std::optional<size_t>>> assign_in_order(
    const std::vector<Shape>& candidates, const std::vector<std::vector<OwnedIndex>>& groups);

}  // namespace dsckpt
