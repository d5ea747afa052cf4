// The entries of `module`, the state_dict of a model.
//
// torch's is flat. Megatron's state_dict_for_save_checkpoint nests dicts. Their keys, joined by
// dots, are the names that the parameters have elsewhere: {"language_model": {"encoder":
// {"layers.0.weight": ...}}}.
#pragma once

#include <string>
#include <string_view>
#include <unordered_set>
#include <utility>
#include <vector>

#include "base/keyed_hash.h"
#include "pickle/pickle.h"

namespace dsckpt {

// Borrows the value's document. Read by many threads once it is made.
class ModuleEntries {
 public:
  // A value that is not a mapping has no entries. A mapping in it counts as entries if it holds
  // only tensors and such mappings. Otherwise, or if it is an `_extra_state` or comes twice, it
  // counts as one entry. Keys that are not strings are left out. Linear in the value's size, also
  // where it contains itself.
  explicit ModuleEntries(const pickle::Value& module);
  ModuleEntries(ModuleEntries&&) = default;

  // In the order of the file.
  const std::vector<std::pair<std::string, pickle::Value>>& all() const { return all_; }
  // None if there is none. The first of several entries with one name.
  pickle::Value find(std::string_view name) const;
  // True if `value` is a mapping in `module` that counts as entries.
  bool is_nested(const pickle::Value& value) const { return nested_.contains(value.identity()); }

 private:
  std::vector<std::pair<std::string, pickle::Value>> all_;
  KeyedMap<std::string_view, size_t> by_name_;  // views into `all_`
  std::unordered_set<const void*> nested_;
};

}  // namespace dsckpt
