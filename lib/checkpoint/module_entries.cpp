#include "checkpoint/module_entries.h"

#include "format/meta_tensor.h"
#include "format/tensors_in.h"
#include "format/torch_archive.h"

namespace dsckpt {
using pickle::Kind;
using pickle::Value;
namespace {

// Values of any form, which must not become parts of a name.
constexpr std::string_view kExtraState = "_extra_state";

class NestedDicts {
 public:
  // All mappings below `module` that hold nothing but tensors and such mappings.
  explicit NestedDicts(const Value& module) { look_into(module); }

  std::unordered_set<const void*> take() { return std::move(nested_); }

 private:
  // True if it holds nothing else. Every mapping is looked into once.
  bool look_into(const Value& mapping) {
    if (!seen_.insert(mapping.identity()).second) {
      nested_.erase(mapping.identity());  // a small pickle could name many tensors without end
      return false;
    }
    bool pure = true;
    for (const auto& [key, value] : mapping.as_dict().items) {
      if (TorchArchive::is_tensor(value) || is_meta_tensor(value)) {
        pure = pure && key.is(Kind::string);
        continue;
      }
      const bool may_be = key.is(Kind::string) && !key.as_string().ends_with(kExtraState);
      if (may_be && value.is_mapping() && look_into(value)) {
        nested_.insert(value.identity());
      } else {
        pure = false;
      }
    }
    return pure;
  }

  std::unordered_set<const void*> seen_;
  std::unordered_set<const void*> nested_;
};

}  // namespace

ModuleEntries::ModuleEntries(const Value& module) {
  if (!module.is_mapping()) return;
  nested_ = NestedDicts(module).take();
  NamesSize names;
  const auto add = [this, &names](const auto& add_all, const Value& mapping,
                                  const std::string& front) -> void {
    for (const auto& [key, value] : mapping.as_dict().items) {
      if (!key.is(Kind::string)) continue;
      std::string name = front + std::string(key.as_string());
      if (is_nested(value)) {
        add_all(add_all, value, name + ".");
      } else {
        names.add(name);
        all_.emplace_back(std::move(name), value);
      }
    }
  };
  add(add, module, "");
  for (size_t i = 0; i < all_.size(); ++i) by_name_.emplace(all_[i].first, i);
}

Value ModuleEntries::find(std::string_view name) const {
  const auto found = by_name_.find(name);
  return found == by_name_.end() ? Value() : all_[found->second].second;
}

}  // namespace dsckpt
