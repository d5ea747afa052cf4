#include "pickle/nodes.h"
#include "pickle/pickle.h"

namespace dsckpt::pickle {

// Makes an empty node at the first reference and fills it later. So neither depth nor cycles
// matter.
class Document::Copier {
 public:
  Copier(Document& into, Copies& copies, const std::function<Value(const Value&)>& persistent)
      : into_(into), store_(*into.store_), copies_(copies), persistent_(persistent) {}

  Value copy(const Value& value) {
    const Value made = shallow(value);
    while (!open_.empty()) {
      const auto [from, to] = open_.back();
      open_.pop_back();
      fill(*from, *to);
    }
    return made;
  }

 private:
  Value shallow(const Value& value) {
    if (value.is_inline()) return value;
    if (const auto found = copies_.find(value.identity()); found != copies_.end()) {
      return found->second;
    }
    const Value made = empty(value);
    copies_.emplace(value.identity(), made);
    return made;
  }

  Value empty(const Value& value) {
    Node& node = *Access::node(value);
    switch (node.kind) {
      case Kind::tuple:
        return opened(node, store_.tuples.emplace_back(std::span<const Value>()));
      case Kind::list:
      case Kind::set:
      case Kind::frozen_set:
        return opened(node, store_.list(node.kind));
      case Kind::dict:
        return opened(node, store_.dicts.emplace_back());
      case Kind::object:
        return opened(node, store_.objects.emplace_back());
      case Kind::global:
        return global(static_cast<const GlobalNode&>(node));
      case Kind::persistent:
        return persistent_(value);
      default:
        break;
    }
    const std::string_view text = static_cast<const TextNode&>(node).text;
    if (!node.called) return store_.text(node.kind, text);
    return opened(node,
                  store_.called_bytes.emplace_back(store_.arena.copy(text), Value(), Value()));
  }

  Value opened(Node& from, Node& to) {
    open_.emplace_back(&from, &to);
    return Access::make(to);
  }

  // Nodes of the same name stay separate, so that the copy's pickle equals the original's. Python 2
  // names are kept apart from the names that Document::global() returns.
  Value global(const GlobalNode& node) {
    const Value made = Access::make(store_.globals.emplace_back(
        store_.arena.copy(node.module), store_.arena.copy(node.name), node.python2));
    const std::string python3 = std::string(node.module) + "\n" + std::string(node.name);
    const std::string python2 = python3 + "\n2";
    const bool known =
        store_.global_names.contains(python3) || store_.global_names.contains(python2);
    store_.global_names.try_emplace(node.python2 ? python2 : python3, made);
    if (!known) into_.globals_.push_back(std::string(node.module) + "." + std::string(node.name));
    return made;
  }

  std::vector<Value> shallow(std::span<const Value> values) {
    std::vector<Value> made;
    made.reserve(values.size());
    for (const Value& value : values) made.push_back(shallow(value));
    return made;
  }

  void fill(const DictNode& from, DictNode& to) {
    for (const auto& [key, value] : from.items) {
      const Value made = shallow(key);
      Access::insert(to, made, shallow(value));
    }
  }

  void fill(Node& from, Node& to) {
    switch (from.kind) {
      case Kind::tuple:
        static_cast<TupleNode&>(to).items =
            store_.arena.copy(shallow(static_cast<const TupleNode&>(from).items));
        return;
      case Kind::dict:
        return fill(static_cast<DictHolder&>(from).dict, static_cast<DictHolder&>(to).dict);
      case Kind::object: {
        const ObjectNode& object = static_cast<ObjectHolder&>(from).object;
        ObjectNode& made = static_cast<ObjectHolder&>(to).object;
        made.made = object.made;
        made.callable = shallow(object.callable);
        made.arguments = shallow(object.arguments);
        made.keywords = shallow(object.keywords);
        made.has_state = object.has_state;
        made.state = shallow(object.state);
        made.items = shallow(object.items);
        return fill(object.mapping, made.mapping);
      }
      case Kind::bytes: {
        const auto& called = static_cast<const CalledBytesNode&>(from);
        static_cast<CalledBytesNode&>(to).callable = shallow(called.callable);
        static_cast<CalledBytesNode&>(to).arguments = shallow(called.arguments);
        return;
      }
      default:
        static_cast<ListNode&>(to).items = shallow(static_cast<const ListNode&>(from).items);
        return;
    }
  }

  Document& into_;
  Store& store_;
  Copies& copies_;
  const std::function<Value(const Value&)>& persistent_;
  std::vector<std::pair<Node*, Node*>> open_;
};

Value Document::copy(const Value& value, Copies& copies,
                     const std::function<Value(const Value& persistent)>& persistent) {
  return Copier(*this, copies, persistent).copy(value);
}

}  // namespace dsckpt::pickle
