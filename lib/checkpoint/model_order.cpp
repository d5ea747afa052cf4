#include "checkpoint/model_order.h"

#include <algorithm>
#include <compare>
#include <optional>

namespace dsckpt {
namespace {

// The module of a parameter; "" of the model's own.
std::string module_of(const std::string& name) {
  const size_t dot = name.rfind('.');
  return dot == std::string::npos ? std::string() : name.substr(0, dot);
}

// Calls `take` with the modules that `name` lies in, the innermost first and "" last.
template <typename F>
void for_each_module(const std::string& name, F&& take) {
  for (std::string module = module_of(name); !module.empty(); module = module_of(module)) {
    if (!take(module)) return;
  }
  take(std::string());
}

// Where the saved entries of each module are.
class SavedModules {
 public:
  explicit SavedModules(const std::vector<std::string>& saved) {
    for (size_t i = 0; i < saved.size(); ++i) {
      for_each_module(saved[i], [&](const std::string& module) {
        first_.emplace(module, i);
        last_[module] = i;
        return true;
      });
      last_own_[module_of(saved[i])] = i;
    }
  }

  // Entry i has slot 2i + 1; a new one lies between two.
  size_t slot_of(const std::string& name) const {
    const std::string own = module_of(name);
    if (const auto sibling = last_own_.find(own); sibling != last_own_.end()) {
      return 2 * sibling->second + 2;
    }
    if (const auto below = first_.find(own); below != first_.end()) return 2 * below->second;
    size_t slot = 0;
    for_each_module(own, [&](const std::string& module) {
      const auto found = last_.find(module);
      if (found == last_.end()) return true;
      slot = 2 * found->second + 2;
      return false;
    });
    return slot;
  }

 private:
  KeyedMap<std::string, size_t> first_;
  KeyedMap<std::string, size_t> last_;
  KeyedMap<std::string, size_t> last_own_;  // that lie in it directly
};

// Where a new parameter lies among the new ones: the number of each module from outside in, then
// its own.
struct NewPlace {
  struct Part {
    bool is_module = false;
    bool is_bias = false;
    size_t number = 0;
    auto operator<=>(const Part&) const = default;
  };
  std::vector<Part> parts;
  size_t index = 0;
};

std::vector<size_t> in_order(const std::vector<std::string>& added) {
  KeyedMap<std::string, size_t> numbers;  // of modules, as they first come
  std::vector<NewPlace> places;
  for (size_t i = 0; i < added.size(); ++i) {
    NewPlace place{.parts = {}, .index = i};
    for (size_t dot = added[i].find('.'); dot != std::string::npos;
         dot = added[i].find('.', dot + 1)) {
      const size_t number = numbers.emplace(added[i].substr(0, dot), numbers.size()).first->second;
      place.parts.push_back({.is_module = true, .is_bias = false, .number = number});
    }
    place.parts.push_back({.is_module = false, .is_bias = added[i].ends_with("bias"), .number = i});
    places.push_back(std::move(place));
  }
  std::sort(places.begin(), places.end(),
            [](const NewPlace& a, const NewPlace& b) { return a.parts < b.parts; });
  std::vector<size_t> order;
  for (const NewPlace& place : places) order.push_back(place.index);
  return order;
}

}  // namespace

ModelOrder::ModelOrder(const std::vector<std::string>& saved,
                       const std::vector<std::string>& added) {
  for (size_t i = 0; i < saved.size(); ++i) places_.emplace(saved[i], Place{2 * i + 1, 0});
  const SavedModules modules(saved);
  size_t number = 0;
  for (const size_t i : in_order(added)) {
    places_.emplace(added[i], Place{modules.slot_of(added[i]), number++});
  }
}

}  // namespace dsckpt
