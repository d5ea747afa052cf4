#include <bit>
#include <functional>

#include "base/keyed_hash.h"
#include "pickle/nodes.h"
#include "pickle/pickle.h"

namespace dsckpt::pickle {
namespace {

// Items between MARK and APPENDS or SETITEMS: BATCHSIZE in CPython's Modules/_pickle.c.
constexpr size_t kBatch = 1000;

// Writes the opcodes around the items of a list or dict. For "exact" lists and dicts CPython opens
// a batch as soon as one is due. For other classes it first looks at the next item.
class Batches {
 public:
  Batches(std::string& out, size_t count, bool exact, char one, char many)
      : out_(out), count_(count), exact_(exact), one_(one), many_(many) {}

  void before(size_t i) const {
    if (!single(i) && i % kBatch == 0) out_.push_back('(');
  }
  void after(size_t i) const {
    if (single(i)) {
      out_.push_back(one_);
    } else if ((i + 1) % kBatch == 0 || i + 1 == count_) {
      out_.push_back(many_);
    }
  }

 private:
  bool single(size_t i) const { return exact_ ? count_ == 1 : i + 1 == count_ && i % kBatch == 0; }
  std::string& out_;
  size_t count_;
  bool exact_;
  char one_;
  char many_;
};

// The memo numbers of values. They are kept in the nodes, since a pickle of many tensors has
// millions.
class NodeMemo {
 public:
  NodeMemo() = default;
  ~NodeMemo() {
    for (const Node* node : nodes_) node->memoised = false;
  }
  NodeMemo(const NodeMemo&) = delete;
  NodeMemo& operator=(const NodeMemo&) = delete;

  static bool has(const Node& node) { return node.memoised; }
  static uint32_t number(const Node& node) { return node.mark; }
  void insert(const Node& node, uint32_t number) {
    if (node.memoised) return;
    nodes_.push_back(&node);
    node.memoised = true;
    node.mark = number;
  }

 private:
  std::vector<const Node*> nodes_;
};

class Writer {
 public:
  Writer(uint32_t max_depth, const std::function<void(const Value&)>& persistent)
      : max_depth_(max_depth), persistent_(persistent) {}

  std::string write(const Value& root) {
    out_ = "\x80\x02";
    save(root);
    while (!path_.empty()) step();
    out_.push_back('.');
    return std::move(out_);
  }

 private:
  // A value while its parts are written.
  struct Frame {
    Node* node;
    const ObjectNode* object;  // how to write a value that is a call
    size_t index = 0;          // the next part
    uint32_t depth = 0;
  };

  // Writes a leaf, or the beginning of a container. For a container it pushes a frame and returns
  // true.
  bool save(const Value& value) {
    switch (value.kind()) {
      case Kind::none:
        out_.push_back('N');
        return false;
      case Kind::boolean:
        out_.push_back(value.as_bool() ? '\x88' : '\x89');
        return false;
      case Kind::integer:
        save_integer(value.as_int());
        return false;
      case Kind::big_integer:
        save_long(value.as_bytes());
        return false;
      case Kind::real:
        out_.push_back('G');
        append_le(out_, __builtin_bswap64(std::bit_cast<uint64_t>(value.as_real())));
        return false;
      default:
        break;
    }
    Node& node = *Access::node(value);
    if (get(node)) return false;
    switch (node.kind) {
      case Kind::string:
        save_string(static_cast<TextNode&>(node));
        return false;
      case Kind::bytes:
        return open(node, bytes_object(static_cast<TextNode&>(node)));
      case Kind::byte_array:
        return open(node, byte_array_object(static_cast<TextNode&>(node)));
      case Kind::global:
        return save_global(static_cast<GlobalNode&>(node));
      case Kind::tuple:
        if (static_cast<TupleNode&>(node).items.size() > 3) out_.push_back('(');
        return open(node);
      case Kind::list:
        out_.push_back(']');
        put(node);
        return open(node);
      case Kind::dict:
        out_.push_back('}');
        put(node);
        return open(node);
      case Kind::set:
      case Kind::frozen_set:
        return open(node, set_object(static_cast<ListNode&>(node)));
      case Kind::object:
        return open(node, call_object(static_cast<ObjectHolder&>(node).object));
      default:
        return open(node);
    }
  }

  bool open(Node& node, const ObjectNode* object = nullptr) {
    path_.push_back({&node, object, 0, depth_of(node)});
    return true;
  }

  // Returns the depth of the parts of `node`. Throws if that is too deep.
  uint32_t depth_of(const Node& node) const {
    const uint32_t depth = path_.empty() ? 0 : path_.back().depth;
    // Bytes are a leaf, even if the pickle spells them as a call.
    const bool in_bytes = !path_.empty() && path_.back().node->called;
    if (node.helper || in_bytes || !is_container(node.kind)) return depth;
    if (depth >= max_depth_) {
      throw UnsupportedError({}, "values nest deeper than " + std::to_string(max_depth_));
    }
    return depth + 1;
  }

  // Continues the topmost frame until a part pushes a frame of its own.
  void step() {
    Frame& frame = path_.back();
    Node& node = *frame.node;
    bool opened = false;
    if (frame.object != nullptr) {
      opened = step_object(frame, *frame.object);
    } else if (node.kind == Kind::tuple) {
      opened = step_tuple(frame, static_cast<TupleNode&>(node));
    } else if (node.kind == Kind::list) {
      opened = step_items(frame.index, 0, static_cast<ListNode&>(node).items, true);
    } else if (node.kind == Kind::dict) {
      opened = step_pairs(frame.index, 0, static_cast<DictHolder&>(node).dict.items, true);
    } else {
      if (frame.index++ == 0) {
        if (persistent_) persistent_(Access::make(node));
        opened = save(static_cast<PersistentNode&>(node).id);
      }
      if (!opened) out_.push_back('Q');
    }
    if (!opened) path_.pop_back();
  }

  // `index` belongs to a frame, which may move when save() returns true. Parts below `base` are not
  // items.
  bool step_items(size_t& index, size_t base, const std::vector<Value>& items, bool exact) {
    const Batches batches(out_, items.size(), exact, 'a', 'e');
    while (index - base < items.size()) {
      const size_t at = index++ - base;
      if (at > 0) batches.after(at - 1);
      batches.before(at);
      if (save(items[at])) return true;
    }
    if (index - base == items.size()) {
      ++index;
      if (!items.empty()) batches.after(items.size() - 1);
    }
    return false;
  }

  bool step_pairs(size_t& index, size_t base, const std::vector<std::pair<Value, Value>>& items,
                  bool exact) {
    const Batches batches(out_, items.size(), exact, 's', 'u');
    while (index - base < 2 * items.size()) {
      const size_t half = index++ - base;
      const size_t at = half / 2;
      if (half % 2 == 0) {
        if (at > 0) batches.after(at - 1);
        batches.before(at);
      }
      if (save(half % 2 == 0 ? items[at].first : items[at].second)) return true;
    }
    if (index - base == 2 * items.size()) {
      ++index;
      if (!items.empty()) batches.after(items.size() - 1);
      // CPython recognises the end of a dict only by a batch that is not full.
      if (exact && !items.empty() && items.size() % kBatch == 0) out_ += "(u";
    }
    return false;
  }

  bool step_tuple(Frame& frame, const TupleNode& node) {
    const size_t size = node.items.size();
    if (size == 0) {
      out_.push_back(')');  // never memoised
      return false;
    }
    while (frame.index < size) {
      if (save(node.items[frame.index++])) return true;
    }
    if (NodeMemo::has(node)) {
      // The tuple contains itself, and the inner reference has already written it.
      if (size <= 3) {
        out_.append(size, '0');
      } else {
        out_.push_back('1');
      }
      get(node);
      return false;
    }
    out_.push_back(size > 3 ? 't' : static_cast<char>('\x85' + static_cast<int>(size) - 1));
    put(node);
    return false;
  }

  // The parts are callable, arguments, items, pairs and state. Items and pairs each take one index
  // more, for their end.
  bool step_object(Frame& frame, const ObjectNode& object) {
    if (frame.index == 0) {
      ++frame.index;
      if (save(object.callable)) return true;
    }
    if (frame.index == 1) {
      ++frame.index;
      if (save(object.arguments)) return true;
    }
    if (frame.index == 2) {
      ++frame.index;
      const bool is_new =
          object.made == ObjectNode::Made::newobj || object.made == ObjectNode::Made::newobj_ex ||
          (object.made == ObjectNode::Made::inst && object.arguments.as_sequence().empty());
      out_.push_back(is_new ? '\x81' : 'R');
      if (NodeMemo::has(*frame.node)) {
        // The arguments contained the object.
        out_.push_back('0');
        get(*frame.node);
        return false;
      }
      put(*frame.node);
    }
    constexpr size_t kItems = 3;
    const size_t pairs = kItems + object.items.size() + 1;
    const size_t state = pairs + 2 * object.mapping.items.size() + 1;
    if (frame.index < pairs && step_items(frame.index, kItems, object.items, false)) return true;
    if (frame.index < state && step_pairs(frame.index, pairs, object.mapping.items, false)) {
      return true;
    }
    if (object.has_state) {
      if (frame.index == state) {
        ++frame.index;
        if (save(object.state)) return true;
      }
      out_.push_back('b');
    }
    return false;
  }

  // Leaves.

  void save_integer(int64_t value) {
    if (value >= 0 && value <= UINT8_MAX) {
      out_.push_back('K');
      append_le(out_, static_cast<uint8_t>(value));
    } else if (value >= 0 && value <= UINT16_MAX) {
      out_.push_back('M');
      append_le(out_, static_cast<uint16_t>(value));
    } else if (value >= INT32_MIN && value <= INT32_MAX) {
      out_.push_back('J');
      append_le(out_, static_cast<int32_t>(value));
    } else {
      std::string bytes;
      append_le(bytes, value);
      save_long(shortest(bytes));
    }
  }

  void save_long(std::string_view twos_complement) {
    if (twos_complement.size() <= UINT8_MAX) {
      out_.push_back('\x8a');
      append_le(out_, static_cast<uint8_t>(twos_complement.size()));
    } else {
      if (twos_complement.size() > INT32_MAX) throw UnsupportedError({}, "an integer over 2 GiB");
      out_.push_back('\x8b');
      append_le(out_, static_cast<int32_t>(twos_complement.size()));
    }
    out_ += twos_complement;
  }

  void save_string(const TextNode& node) {
    if (node.text.size() > UINT32_MAX) throw UnsupportedError({}, "a text over 4 GiB in a pickle");
    out_.push_back('X');
    append_le(out_, static_cast<uint32_t>(node.text.size()));
    out_ += node.text;
    put(node);
  }

  bool save_global(GlobalNode& node) {
    const bool python2 = node.python2;
    const auto [module, name] =
        python2 ? std::pair(node.module, node.name) : python2_name(node.module, node.name);
    // A name that the writer needs is the same object as the document's own.
    if (const auto found = names_.find(name_key(node)); found != names_.end()) {
      if (node.helper || found->second.helper) {
        memo_.insert(node, found->second.index);
        write_get(found->second.index);
        return false;
      }
    }
    if (!python2) {
      if (const size_t dot = node.name.rfind('.'); dot != std::string_view::npos) {
        return open(node, nested_class_object(node, dot));
      }
    }
    for (const std::string_view text : {module, name}) {
      if (!is_ascii(text) || text.find('\n') != std::string_view::npos) {
        throw UnsupportedError({}, "the name of the global '" + std::string(module) + "." +
                                       std::string(name) + "' does not fit pickle protocol 2");
      }
    }
    out_.push_back('c');
    out_ += module;
    out_.push_back('\n');
    out_ += name;
    out_.push_back('\n');
    put(node);
    return false;
  }

  // Values that protocol 2 spells as calls. They live in scratch_.

  template <typename... Values>
  Value call(Value callable, Values... arguments) {
    const Value tuple = helper(scratch_.tuple({arguments...}));
    return helper(scratch_.object(ObjectNode::Made::reduce, callable, tuple));
  }

  Value helper(Value value) {
    Access::node(value)->helper = true;
    return value;
  }
  Value helper_global(std::string_view module, std::string_view name) {
    return helper(scratch_.global(module, name));
  }
  static const ObjectNode* shape(const Value& object) { return &object.as_object(); }

  // Python has a single str for each Latin-1 character and for 'latin1'.
  const ObjectNode* bytes_object(const TextNode& node) {
    if (node.called) {
      const auto& called = static_cast<const CalledBytesNode&>(node);
      return shape(scratch_.object(ObjectNode::Made::reduce, called.callable, called.arguments));
    }
    if (node.text.empty()) return shape(call(helper_global("builtins", "bytes")));
    std::string text;
    text.reserve(node.text.size());
    for (const char c : node.text) append_utf8(text, static_cast<unsigned char>(c));
    return shape(call(helper_global("_codecs", "encode"),
                      node.text.size() == 1 ? scratch_.intern(text) : scratch_.string(text),
                      scratch_.intern("latin1")));
  }

  const ObjectNode* byte_array_object(const TextNode& node) {
    const Value callable = helper_global("builtins", "bytearray");
    if (node.text.empty()) return shape(call(callable));
    if (node.text.size() > 1) return shape(call(callable, scratch_.bytes(node.text)));
    // Python has a single bytes object for each byte.
    const auto [found, is_new] = single_bytes_.try_emplace(node.text[0]);
    if (is_new) found->second = scratch_.bytes(node.text);
    return shape(call(callable, found->second));
  }

  const ObjectNode* set_object(const ListNode& node) {
    return shape(
        call(helper_global("builtins", node.kind == Kind::set ? "set" : "frozenset"),
             helper(scratch_.list(std::vector<Value>(node.items.begin(), node.items.end())))));
  }

  // class Outer: class Inner  ->  getattr(Outer, 'Inner')
  const ObjectNode* nested_class_object(const GlobalNode& node, size_t dot) {
    return shape(call(helper_global("builtins", "getattr"),
                      helper_global(node.module, node.name.substr(0, dot)),
                      scratch_.string(node.name.substr(dot + 1))));
  }

  // Protocol 4 introduced NEWOBJ_EX. CPython writes partial(cls.__new__, cls, *args, **keywords)().
  const ObjectNode* call_object(const ObjectNode& object) {
    if (object.made != ObjectNode::Made::newobj_ex || object.keywords.is_none() ||
        object.keywords.as_dict().items.empty()) {
      return &object;
    }
    const auto [found, is_new] = new_methods_.try_emplace(object.callable.identity());
    if (is_new) {
      found->second =
          call(helper_global("builtins", "getattr"), object.callable, scratch_.string("__new__"));
    }
    const Value method = found->second;
    const Value partial = call(helper_global("functools", "partial"), method);
    std::vector<Value> arguments{object.callable};
    const auto rest = object.arguments.as_sequence();
    arguments.insert(arguments.end(), rest.begin(), rest.end());
    scratch_.set_state(partial, helper(scratch_.tuple({method, helper(scratch_.tuple(arguments)),
                                                       object.keywords, Value()})));
    const Value made = call(partial);
    ObjectNode& shaped = Access::as<ObjectHolder>(made).object;
    shaped.has_state = object.has_state;
    shaped.state = object.state;
    shaped.items = object.items;
    shaped.mapping = object.mapping;
    return &shaped;
  }

  // The memo.

  static std::string name_key(const GlobalNode& node) {
    const auto [module, name] =
        node.python2 ? std::pair(node.module, node.name) : python2_name(node.module, node.name);
    return std::string(module) + "\n" + std::string(name);
  }

  bool get(const Node& node) {
    if (!NodeMemo::has(node)) return false;
    write_get(NodeMemo::number(node));
    return true;
  }

  void write_get(uint32_t index) { write_memo('h', 'j', index); }

  void put(const Node& node) {
    if (puts_ > UINT32_MAX) throw UnsupportedError({}, "too many values for one pickle");
    const auto index = static_cast<uint32_t>(puts_++);
    memo_.insert(node, index);
    if (node.kind == Kind::global) {
      names_.try_emplace(name_key(static_cast<const GlobalNode&>(node)), Named{index, node.helper});
    }
    write_memo('q', 'r', index);
  }

  void write_memo(char small, char large, uint32_t index) {
    if (index <= UINT8_MAX) {
      out_.push_back(small);
      append_le(out_, static_cast<uint8_t>(index));
    } else {
      out_.push_back(large);
      append_le(out_, index);
    }
  }

  struct Named {
    uint32_t index;
    bool helper;
  };

  uint32_t max_depth_;
  const std::function<void(const Value&)>& persistent_;
  std::string out_;
  std::vector<Frame> path_;
  uint64_t puts_ = 0;
  KeyedMap<std::string, Named> names_;
  Document scratch_;
  std::unordered_map<char, Value> single_bytes_;
  std::unordered_map<const void*, Value> new_methods_;
  NodeMemo memo_;  // destroyed before the nodes of scratch_
};

}  // namespace

std::string write_protocol2(const Value& root, uint32_t max_depth,
                            const std::function<void(const Value&)>& persistent) {
  return Writer(max_depth, persistent).write(root);
}

}  // namespace dsckpt::pickle
