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

// Returns the optimizer's number of each candidate, a parameter by its shape, or none if it is
// frozen. Every group comes in the candidates' order, and shapes agree. Returns nullopt if there is
// no way or more than one. The numbers are those of torch/optim/optimizer.py state_dict.
std::optional<std::vector<std::optional<size_t>>> assign_in_order(
    const std::vector<Shape>& candidates, const std::vector<std::vector<OwnedIndex>>& groups);

// The order in which an optimizer was given its parameters, as far as the user or a checkpoint
// tells it.
struct KnownOrder {
  std::vector<std::vector<std::string>> groups =
      {};                               // names, by group, of a run with the same ones
  std::vector<std::string> names = {};  // of the model, as named_parameters() has them
};

// The names of the parameters that an optimizer's groups have by numbers. They are those of
// `order.groups` if these are as many, or else follow the order of `order.names`. Returns none if
// neither tells. Here `shape_of` gives a parameter's shape, nullptr for none of the model. And
// `state_shape` gives the shape of a number's states, if it has any. Throws InconsistentError for a
// name that is none of the model.
std::optional<KeyedMap<std::string, std::string>> names_of_numbers(
    const std::vector<std::vector<std::string>>& groups, const KnownOrder& order,
    const std::function<const Shape*(const std::string&)>& shape_of,
    const std::function<std::optional<Shape>(const std::string&)>& state_shape);

}  // namespace dsckpt
