#include "format/tensors_in.h"

#include <unordered_set>
#include <utility>

#include "base/text.h"
#include "dsckpt/error.h"
#include "format/torch_archive.h"

namespace dsckpt {
using pickle::Kind;
using pickle::Value;
namespace {

// Returns a key as Python prints it, but text without quotes.
std::string key_text(const Value& key) {
  switch (key.kind()) {
    case Kind::none:
      return "None";
    case Kind::boolean:
      return key.as_bool() ? "True" : "False";
    case Kind::tuple: {
      std::string text;
      for (const Value& part : key.as_sequence()) {
        if (part.is(Kind::tuple)) return "<tuple>";  // deeper than in any name
        text += (text.empty() ? "(" : ", ") + key_text(part);
      }
      return text.empty() ? "()" : text + ")";
    }
    case Kind::string:
      return std::string(key.as_string());
    case Kind::integer:
      return std::to_string(key.as_int());
    default:
      return "<" + std::string(to_string(key.kind())) + ">";
  }
}

// Functions of torch/_utils.py, and torch/_tensor.py _rebuild_from_type_v2(function, type,
// arguments, state).
bool is_of_torchs_rebuilders(const Value& callable) {
  if (!callable.is(Kind::global)) return false;
  const auto [module, name] = callable.as_global();
  return (module == "torch._utils" || module == "torch._tensor") && name.starts_with("_rebuild");
}

// Containers are made from their items. Protocols 0 and 1 make an object from its class alone:
// copyreg._reconstructor(class, object, None).
bool makes_no_tensor(const Value& callable) {
  if (!callable.is(Kind::global)) return false;
  const std::string_view module = callable.as_global().first;
  return module == "collections" || module == "builtins" || module == "__builtin__" ||
         module == "copyreg" || module == "copy_reg";
}

std::string kind_of(const pickle::ObjectNode& object) {
  const auto arguments = object.arguments.sequence_or_empty();
  const bool is_typed = object.is_a("torch._tensor", "_rebuild_from_type_v2") &&
                        arguments.size() > 1 && arguments[1].is(Kind::global);
  const Value& made_by = is_typed ? arguments[1] : object.callable;
  if (!made_by.is(Kind::global)) return describe(made_by);
  const auto [module, name] = made_by.as_global();
  return std::string(module) + "." + std::string(name);
}

class TensorFinder {
 public:
  FoundTensors take() { return std::move(found_); }

  void visit(const Value& value, const std::string& path) {
    if (TorchArchive::is_tensor(value)) {
      names_.add(path);
      found_.tensors.push_back({path, value, in_opaque_});
      return;
    }
    switch (value.kind()) {
      case Kind::tuple:
      case Kind::list:
      case Kind::set:
      case Kind::frozen_set:
        if (entered_.insert(value.identity()).second) visit_items(value.as_sequence(), path);
        break;
      case Kind::dict:
        if (entered_.insert(value.identity()).second) visit_mapping(value.as_dict(), path);
        break;
      case Kind::object:
        if (entered_.insert(value.identity()).second) visit_object(value.as_object(), path);
        break;
      default:
        break;
    }
  }

 private:
  static std::string below(const std::string& path, const std::string& key) {
    return path.empty() ? key : path + "." + key;
  }

  void visit_items(std::span<const Value> items, const std::string& path) {
    for (size_t i = 0; i < items.size(); ++i) visit(items[i], below(path, std::to_string(i)));
  }

  void visit_mapping(const pickle::DictNode& mapping, const std::string& path) {
    for (const auto& [key, value] : mapping.items) visit(value, below(path, key_text(key)));
  }

  void visit_object(const pickle::ObjectNode& object, const std::string& path) {
    if (in_opaque_ || object.made != pickle::ObjectNode::Made::reduce ||
        makes_no_tensor(object.callable)) {
      return visit_parts(object, path);
    }
    const size_t before = found_.tensors.size();
    in_opaque_ = true;
    visit_arguments(object, path);
    in_opaque_ = is_of_torchs_rebuilders(object.callable) || found_.tensors.size() > before;
    if (in_opaque_) {
      names_.add(path);
      found_.opaque.push_back({path, printable(kind_of(object))});
    }
    visit_contents(object, path);
    in_opaque_ = false;
  }

  void visit_parts(const pickle::ObjectNode& object, const std::string& path) {
    visit_arguments(object, path);
    visit_contents(object, path);
  }

  void visit_arguments(const pickle::ObjectNode& object, const std::string& path) {
    visit(object.arguments, path);
    visit(object.keywords, path);
  }

  void visit_contents(const pickle::ObjectNode& object, const std::string& path) {
    visit_items(object.items, path);
    visit_mapping(object.mapping, path);
    if (object.has_state) visit(object.state, path);
  }

  std::unordered_set<const void*> entered_;
  FoundTensors found_;
  bool in_opaque_ = false;
  NamesSize names_;
};

}  // namespace

void NamesSize::add(std::string_view name) {
  constexpr uint64_t kMaxSize = uint64_t{16} << 20;
  bytes_ += name.size();
  ++names_;
  if (bytes_ <= kMaxSize || bytes_ / 1024 <= names_) return;
  throw UnsupportedError({}, "the names of its tensors are too long: '" +
                                 printable(std::string(name.substr(0, 40))) + "...' has " +
                                 human_bytes(name.size()));
}

FoundTensors find_tensors(const Value& root) {
  TensorFinder finder;
  finder.visit(root, "");
  return finder.take();
}

std::vector<FoundTensor> tensors_in(const Value& root) {
  return find_tensors(root).tensors;
}

}  // namespace dsckpt
