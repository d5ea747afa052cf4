// The nodes of a Document. For the pickle sources only.
//
// Nodes live in deques of their own type, so addresses are stable and destruction is flat however
// deep the values nest. Text and tuple elements live in an arena.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <deque>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/keyed_hash.h"
#include "pickle/pickle.h"

namespace dsckpt::pickle {

struct Node {
  explicit Node(Kind node_kind) : kind(node_kind) {}
  Kind kind;
  bool called = false;  // a CalledBytesNode
  bool helper = false;  // made by the writer to spell another value
  // Used only while it is written, by one writer at a time: `mark` is its number in the memo.
  mutable bool memoised = false;
  // While parsing 0: not visited; 1: open; otherwise height + 2.
  mutable uint32_t mark = 0;
};

// string, bytes, byte_array, big_integer
struct TextNode : Node {
  TextNode(Kind node_kind, std::string_view node_text) : Node(node_kind), text(node_text) {}
  std::string_view text;
};

// bytes that a pickle gave as a call: _codecs.encode(text, 'latin1') or bytes().
struct CalledBytesNode : TextNode {
  CalledBytesNode(std::string_view data, Value made_by, Value made_of)
      : TextNode(Kind::bytes, data), callable(made_by), arguments(made_of) {
    called = true;
  }
  Value callable;
  Value arguments;
};

// tuple; the elements are in the arena
struct TupleNode : Node {
  explicit TupleNode(std::span<const Value> elements) : Node(Kind::tuple), items(elements) {}
  std::span<const Value> items;
};

// list, set, frozen_set
struct ListNode : Node {
  explicit ListNode(Kind node_kind) : Node(node_kind) {}
  std::vector<Value> items;
};

struct DictHolder : Node {
  DictHolder() : Node(Kind::dict) {}
  DictNode dict;
};

struct ObjectHolder : Node {
  ObjectHolder() : Node(Kind::object) {}
  ObjectNode object;
};

struct GlobalNode : Node {
  GlobalNode(std::string_view global_module, std::string_view global_name, bool is_python2)
      : Node(Kind::global), module(global_module), name(global_name), python2(is_python2) {}
  std::string_view module;
  std::string_view name;
  bool python2;  // already a Python 2 name: read from a pickle of protocol 0 to 2
};

struct PersistentNode : Node {
  explicit PersistentNode(Value node_id) : Node(Kind::persistent), id(node_id) {}
  Value id;
};

// Access to the inside of a Value.
struct Access {
  static Node* node(const Value& value) { return value.is_inline() ? nullptr : value.node_; }
  template <typename T>
  static T& as(const Value& value) {
    return *static_cast<T*>(value.node_);
  }
  static Value make(Node& node) {
    Value value;
    value.kind_ = node.kind;
    value.node_ = &node;
    return value;
  }
  static Value make(bool boolean) {
    Value value;
    value.kind_ = Kind::boolean;
    value.boolean_ = boolean;
    return value;
  }
  static Value make(int64_t integer) {
    Value value;
    value.kind_ = Kind::integer;
    value.integer_ = integer;
    return value;
  }
  static Value make(double real) {
    Value value;
    value.kind_ = Kind::real;
    value.real_ = real;
    return value;
  }
  static void insert(DictNode& dict, Value key, Value value) { dict.insert(key, value); }
};

// Bump allocation of trivial data; freed as a whole.
class Arena {
 public:
  std::string_view copy(std::string_view text) {
    if (text.empty()) return {};
    char* at = static_cast<char*>(take(text.size(), 1));
    std::memcpy(at, text.data(), text.size());
    return {at, text.size()};
  }
  std::span<const Value> copy(std::span<const Value> values) {
    if (values.empty()) return {};
    Value* at = static_cast<Value*>(take(values.size_bytes(), alignof(Value)));
    std::uninitialized_copy(values.begin(), values.end(), at);
    return {at, values.size()};
  }

 private:
  static constexpr size_t kChunk = size_t{64} << 10;

  void* take(size_t size, size_t alignment) {
    const size_t start = (used_ + alignment - 1) / alignment * alignment;
    if (start <= capacity_ && size <= capacity_ - start) {
      used_ = start + size;
      return chunks_.back().get() + start;
    }
    if (size > kChunk / 4) {
      // A chunk of its own; the open one stays last.
      auto large = std::make_unique_for_overwrite<std::byte[]>(size);
      void* at = large.get();
      chunks_.insert(chunks_.empty() ? chunks_.end() : chunks_.end() - 1, std::move(large));
      return at;
    }
    const size_t wanted = chunks_.empty() ? kChunk / 16 : kChunk;
    chunks_.push_back(std::make_unique_for_overwrite<std::byte[]>(std::max(size, wanted)));
    capacity_ = std::max(size, wanted);
    used_ = size;
    return chunks_.back().get();
  }

  std::vector<std::unique_ptr<std::byte[]>> chunks_;
  size_t used_ = 0;
  size_t capacity_ = 0;
};

struct Document::Store {
  Arena arena;
  std::deque<TextNode> texts;
  std::deque<CalledBytesNode> called_bytes;
  std::deque<TupleNode> tuples;
  std::deque<ListNode> lists;
  std::deque<DictHolder> dicts;
  std::deque<ObjectHolder> objects;
  std::deque<GlobalNode> globals;
  std::deque<PersistentNode> persistents;
  KeyedMap<std::string, Value> global_names;  // "module\nname" -> its first node
  KeyedMap<std::string_view, Value> interned;

  Value text(Kind kind, std::string_view text) {
    return Access::make(texts.emplace_back(kind, arena.copy(text)));
  }
  Value tuple(std::span<const Value> items) {
    return Access::make(tuples.emplace_back(arena.copy(items)));
  }
  ListNode& list(Kind kind) { return lists.emplace_back(kind); }
};

// Calls `visit(child)` for every value directly inside `node` from the `index`th on, until it
// returns false; `index` is left after the last one visited. False if stopped.
template <typename Visit>
bool for_each_child(Node& node, size_t& index, Visit&& visit) {
  const auto each = [&](std::span<const Value> items) {
    while (index < items.size()) {
      if (!visit(items[index++])) return false;
    }
    return true;
  };
  const auto each_pair = [&](const std::vector<std::pair<Value, Value>>& items, size_t base) {
    while (index - base < 2 * items.size()) {
      const size_t at = index++ - base;
      const auto& item = items[at / 2];
      if (!visit(at % 2 == 0 ? item.first : item.second)) return false;
    }
    return true;
  };
  switch (node.kind) {
    case Kind::tuple:
      return each(static_cast<TupleNode&>(node).items);
    case Kind::list:
    case Kind::set:
    case Kind::frozen_set:
      return each(static_cast<ListNode&>(node).items);
    case Kind::dict:
      return each_pair(static_cast<DictHolder&>(node).dict.items, 0);
    case Kind::object: {
      const ObjectNode& object = static_cast<ObjectHolder&>(node).object;
      const Value fixed[] = {object.callable, object.arguments, object.keywords, object.state};
      if (!each(fixed)) return false;
      while (index < 4 + object.items.size()) {
        if (!visit(object.items[index++ - 4])) return false;
      }
      return each_pair(object.mapping.items, 4 + object.items.size());
    }
    case Kind::persistent: {
      const Value fixed[] = {static_cast<PersistentNode&>(node).id};
      return each(fixed);
    }
    default:
      return true;
  }
}

// True for kinds that hold other values, as limits on depth count them.
inline bool is_container(Kind kind) {
  return (kind >= Kind::tuple && kind <= Kind::frozen_set) || kind == Kind::object ||
         kind == Kind::persistent;
}

// The Python 2 name of a Python 3 global: fix_imports of Python's pickle, _compat_pickle.py.
std::pair<std::string_view, std::string_view> python2_name(std::string_view module,
                                                           std::string_view name);
// The name that Python 3 reads for a Python 2 global; the same if it has no other.
std::pair<std::string_view, std::string_view> python3_name(std::string_view module,
                                                           std::string_view name);

// Appends the UTF-8 form of a code point, surrogates like any other.
void append_utf8(std::string& out, uint32_t code_point);
// True if `text` is UTF-8 as Python writes it with "surrogatepass".
bool is_utf8(std::string_view text);
bool is_ascii(std::string_view text);
// A little-endian two's complement number without the top bytes that only repeat its sign.
std::string_view shortest(std::string_view number);

}  // namespace dsckpt::pickle
