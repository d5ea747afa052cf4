// An optimizer's numbers given to the parameters of a model by their order.
#pragma once

#include <cstddef>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "base/keyed_hash.h"
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

// The order in which an optimizer was given its parameters, as far as the user or a checkpoint
// tells it.
struct KnownOrder {
  std::vector<std::vector<std::string>> groups =
      {};                               // names, by group, of a run with the same ones
  std::vector<std::string> names = {};  // of the model, as named_parameters() has them
};

// The names of the parameters that an optimizer's groups have by numbers: those of `order.groups`
// where these are as many, or else by the order of `order.names`; none where neither tells.
// `shape_of` gives a parameter's shape, nullptr for none of the model; `state_shape` that of a
// number's states, if it has any. Throws InconsistentError for a name that is none of the model.
std::optional<KeyedMap<std::string, std::string>> names_of_numbers(
    const std::vector<std::vector<std::string>>& groups, const KnownOrder& order,
    const std::function<const Shape*(const std::string&)>& shape_of,
    const std::function<std::optional<Shape>(const std::string&)>& state_shape);

}  // namespace dsckpt
