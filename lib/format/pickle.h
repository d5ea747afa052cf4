// Pickles as data.
//
// A machine for protocols 0 to 5 that builds values and never imports, constructs or calls anything.
// What Python would build by calling a class becomes an Object that records the class's name, the
// arguments, and whatever state and items were to be put into it. Opcodes after CPython's
// Lib/pickletools.py.
//
// A Document owns every value of one pickle. A Value is a small handle into it: copy it freely, keep
// the Document alive. Sharing is kept (two references to one list are the same node), so writing a
// document back gives an equal pickle. Documents are built or parsed by one thread and may then be
// read by many.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/bytes.h"

namespace dsckpt::pickle {

enum class Kind : uint8_t {
  none,
  boolean,
  integer,      // fits int64
  big_integer,  // does not
  real,
  string,      // UTF-8 text (surrogates passed through as they stand)
  bytes,
  byte_array,  // protocol 5 BYTEARRAY8
  tuple,
  list,
  dict,
  set,
  frozen_set,
  global,      // a name: module and qualified name; never resolved
  object,      // the result of REDUCE, NEWOBJ, NEWOBJ_EX, INST or OBJ; never made
  persistent,  // a persistent id; torch puts its storages there
};

// "list", "dict", ... for messages.
std::string_view to_string(Kind kind);

struct Node;
struct DictNode;
struct ObjectNode;

// A handle. Default: None. The typed accessors throw CorruptError that names both kinds if the value
// is of another kind.
class Value {
 public:
  Value() = default;

  Kind kind() const { return kind_; }
  bool is(Kind kind) const { return kind_ == kind; }
  bool is_none() const { return kind_ == Kind::none; }

  bool as_bool() const;
  int64_t as_int() const;                 // integer; bool counts, as in Python
  double as_real() const;                 // real or integer
  std::string_view as_string() const;
  std::string_view as_bytes() const;      // bytes, byte_array; big_integer: two's complement, little-endian
  std::span<const Value> as_sequence() const;  // tuple, list, set, frozen_set
  const DictNode& as_dict() const;        // dict, or an object whose items make it one (OrderedDict)
  const ObjectNode& as_object() const;
  // module and name of a global
  std::pair<std::string_view, std::string_view> as_global() const;
  bool is_global(std::string_view module, std::string_view name) const;
  Value persistent_id() const;

  // True if this is a dict or a dict-like object (as_dict would succeed).
  bool is_mapping() const;
  // The value under a string key of a mapping; nullopt if there is none. Throws if not a mapping.
  std::optional<Value> find(std::string_view key) const;
  // The same, but a missing key is a CorruptError that names it.
  Value at(std::string_view key) const;

  // The node's address: equal for two references to one Python object; nullptr for None, bool,
  // integer and real.
  const void* identity() const { return is_inline() ? nullptr : static_cast<const void*>(node_); }

 private:
  friend class Document;
  friend struct Access;
  bool is_inline() const { return kind_ <= Kind::real && kind_ != Kind::big_integer; }
  Kind kind_ = Kind::none;
  union {
    bool boolean_;
    int64_t integer_ = 0;
    double real_;
    Node* node_;
  };
};

// Insertion-ordered, as Python's dict: a key that comes again replaces the value and keeps its place.
struct DictNode {
  std::vector<std::pair<Value, Value>> items;
  const Value* find(std::string_view key) const;  // string keys only

 private:
  friend class Document;
  std::unordered_map<std::string_view, size_t> strings_;  // string key -> index
  std::unordered_map<int64_t, size_t> integers_;
};

// What Python would have made by calling `callable` with `arguments`.
struct ObjectNode {
  enum class Made : uint8_t { reduce, newobj, newobj_ex, inst };
  Made made = Made::reduce;
  Value callable;   // a global, or an object
  Value arguments;  // tuple
  Value keywords;   // dict; only newobj_ex
  bool has_state = false;
  Value state;               // the argument of BUILD
  std::vector<Value> items;  // APPEND, APPENDS, ADDITEMS onto it
  DictNode mapping;          // SETITEM, SETITEMS onto it

  // True if `callable` is the global module.name.
  bool is_a(std::string_view module, std::string_view name) const {
    return callable.is_global(module, name);
  }
};

// Every limit is checked before anything of that size is allocated. Values beyond one are a
// CorruptError.
struct Limits {
  uint64_t max_bytes = uint64_t{4} << 30;  // of the pickle
  uint32_t max_depth = 1000;               // nesting of containers in the result
};

class Document {
 public:
  Document();
  ~Document();
  Document(Document&&) noexcept;
  Document& operator=(Document&&) noexcept;

  // Parses one pickle at the start of `bytes` (not kept). `consumed`, if given, becomes the length up to and
  // with STOP; without it trailing bytes are an error. Throws CorruptError with the offset of the
  // opcode (counted from `base`) for anything that is not a whole pickle, for nesting or cycles
  // deeper than `limits` allow, and for extension codes and out-of-band buffers, which nothing here can resolve.
  static Document parse(ByteSpan bytes, uint64_t base = 0, size_t* consumed = nullptr,
                        const Limits& limits = {});

  const Value& root() const { return root_; }
  void set_root(Value value) { root_ = value; }

  // Every distinct global named anywhere in the pickle, also by values that were dropped again, as
  // "module.name", in order of first appearance.
  const std::vector<std::string>& globals() const { return globals_; }

  // Building. Values of other documents must not be put into this one.
  static Value none() { return {}; }
  static Value boolean(bool value);
  static Value integer(int64_t value);
  static Value real(double value);
  Value big_integer(std::string_view twos_complement);  // little-endian
  Value string(std::string_view text);   // a new node each time
  Value intern(std::string_view text);   // the same node for the same text, as CPython's interned names
  Value bytes(std::string_view data);
  Value byte_array(std::string_view data);
  Value tuple(std::vector<Value> items);
  Value list(std::vector<Value> items = {});
  Value dict();
  Value set(std::vector<Value> items);
  Value frozen_set(std::vector<Value> items);
  Value global(std::string_view module, std::string_view name);  // one node for each name
  Value object(ObjectNode::Made made, Value callable, Value arguments);
  Value persistent(Value id);

  void append(Value& list_or_object, Value item);
  void set_item(Value& dict_or_object, Value key, Value value);
  void set_state(Value& object, Value state);

 private:
  class Machine;
  struct Store;
  std::unique_ptr<Store> store_;
  Value root_;
  std::vector<std::string> globals_;
};

// Writes `root` as protocol 2, memoising exactly as CPython's C pickler does, so that a value tree
// with the same sharing gives the bytes that pickle.dumps(obj, protocol=2) gives. bytes, sets and
// Python 3 names follow Python's own protocol-2 mapping (_codecs.encode, __builtin__...).
// Throws UnsupportedError for values deeper than `max_depth` (cycles through tuples included).
std::string write_protocol2(const Value& root, uint32_t max_depth = 1000);

}  // namespace dsckpt::pickle
