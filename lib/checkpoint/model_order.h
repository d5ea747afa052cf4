// The order of a model's parameters, in which programs give them to the optimizer.
#pragma once

#include <cstddef>
#include <string>
#include <utility>
#include <vector>

#include "base/keyed_hash.h"

namespace dsckpt {

// Immutable; any thread.
class ModelOrder {
 public:
  // The order of `saved`, the keys of a state_dict, with `added` among them. New ones come as if
  // the program had registered them last. A parameter follows the module's own ones, and a module
  // follows all of the module that it lies in. New ones keep their order, but a module's own
  // parameters come before those of modules in it, and biases last. Linear, but for sorting.
  ModelOrder(const std::vector<std::string>& saved, const std::vector<std::string>& added);
  // The order of `names`.
  explicit ModelOrder(const std::vector<std::string>& names) : ModelOrder(names, {}) {}

  bool has(const std::string& name) const { return places_.contains(name); }
  // Smaller is earlier. `name` must be there.
  using Place = std::pair<size_t, size_t>;
  Place place(const std::string& name) const { return places_.at(name); }

 private:
  KeyedMap<std::string, Place> places_;
};

}  // namespace dsckpt
