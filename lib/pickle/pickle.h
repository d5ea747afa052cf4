// Pickles as data.
//
// A machine for protocols 0 to 5 that builds values and never imports, constructs or calls
// anything. Where Python would call a class to build a value, this makes an Object. It records the
// class's name, the arguments, and the state and items for it. Opcodes follow CPython's
// Lib/pickletools.py.
//
// A Document owns every value of one pickle. A Value is a small handle into it: copy it freely,
// keep the Document alive. Sharing is kept (two references to one list are the same node), so
// writing a document back gives an equal pickle. Documents are built or parsed by one thread and
// may then be read by many.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
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
  bytes,       // also what protocols 0 to 2 write as a call of _codecs.encode or bytes
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
class Value;

// The kind, and the name of globals and objects: "object of posix.system". For messages.
std::string describe(const Value& value);

// A handle. Default: None. The typed accessors throw CorruptError that names both kinds if the
// value is of another kind.
class Value {
 public:
  Value() = default;

  Kind kind() const { return kind_; }
  bool is(Kind kind) const { return kind_ == kind; }
  bool is_none() const { return kind_ == Kind::none; }
  bool is_true() const { return kind_ == Kind::boolean && boolean_; }  // True itself

  bool as_bool() const;
  int64_t as_int() const;  // integer; bool counts, as in Python
  double as_real() const;  // real or integer
  std::string_view as_string() const;
  // bytes, byte_array; of a big_integer its two's complement, little-endian
  std::string_view as_bytes() const;
  std::span<const Value> as_sequence() const;  // tuple, list, set, frozen_set
  // A tuple or list; empty for anything else.
  std::span<const Value> sequence_or_empty() const;
  // A dict, or an object that is a mapping: one with keys set in it, or an (empty) OrderedDict,
  // defaultdict or Counter of collections.
  const DictNode& as_dict() const;
  const ObjectNode& as_object() const;
  // module and name of a global
  std::pair<std::string_view, std::string_view> as_global() const;
  bool is_global(std::string_view module, std::string_view name) const;
  Value persistent_id() const;

  // True if this is a dict or a dict-like object (as_dict would succeed).
  bool is_mapping() const;
  // The value of a string key of a mapping; nullopt if there is none. Throws if it is not a
  // mapping.
  std::optional<Value> find(std::string_view key) const;
  // The same, but a missing key throws a CorruptError that names it.
  Value at(std::string_view key) const;
  // The same, but None if there is no such key or it is not a mapping.
  Value find_or_none(std::string_view key) const;

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

// Insertion-ordered, as Python's dict. A string or integer key that occurs again replaces the value
// and keeps its place. Keys of other kinds are all kept, in their order. Change it through
// Document::set_item.
struct DictNode {
  std::vector<std::pair<Value, Value>> items;
  const Value* find(std::string_view key) const;  // string keys only
  const Value* find(int64_t key) const;           // integer keys only

 private:
  friend struct Access;
  // Open addressing: an item's index + 1 and the hash of its key. Empty for small dicts.
  struct Slot {
    uint32_t hash = 0;
    uint32_t item = 0;
  };
  template <typename Key>
  size_t index_of(const Key& key, uint32_t hash) const;
  void insert(Value key, Value value);
  void grow();
  std::vector<Slot> slots_;
};

// An object that Python would make by calling `callable` with `arguments`.
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

// Limits are checked before anything of that size is allocated. Beyond one, a CorruptError is
// thrown.
struct Limits {
  uint64_t max_bytes = uint64_t{4} << 30;  // of the pickle
  uint32_t max_depth = 1000;               // nesting of containers in the result
};

// Gets the events of a pickle while it is parsed, in the order in which Python would execute them.
// All values are as they are at that time. `at` is the offset of the opcode.
class Witness {
 public:
  // A global comes onto the stack, by its name or from the memo.
  virtual void named(const Value& global, uint64_t at) = 0;
  // A call, whose result is `result`: an object, or bytes.
  virtual void called(const Value& callable, const Value& arguments, const Value& result,
                      uint64_t at) = 0;
  // An object was given its present state, or items, or keys with values.
  virtual void built(const Value& object, uint64_t at) = 0;
  virtual void filled(const Value& object, bool with_keys, uint64_t at) = 0;
  virtual void persistent(const Value& persistent, uint64_t at) = 0;
  // A tuple or an object becomes a key of a dict, or an element of a set.
  virtual void hashed(const Value& value, uint64_t at) = 0;
  // Bytes as they are in the pickle, or as a call spells them.
  virtual void bytes(std::string_view bytes, uint64_t at) = 0;
  // STOP.
  virtual void stopped(const Value& root) = 0;

 protected:
  ~Witness() = default;
};

class Document {
 public:
  Document();
  ~Document();
  Document(Document&&) noexcept;
  Document& operator=(Document&&) noexcept;

  // Parses one pickle at the start of `bytes` (not kept). If given, `consumed` becomes the length
  // up to and including STOP; otherwise trailing bytes are an error. Throws CorruptError for
  // anything that is not a whole pickle, and for nesting deeper than `limits` allow. It has the
  // offset of the opcode or its argument, counted from `base`. Extension codes and out-of-band
  // buffers cannot be resolved, and are refused too. So are things that Python reads and no pickler
  // writes. These are DUP, a protocol that does not come first, and memo indices that are not plain
  // decimals. Others are larger than the number of values that the bytes before could hold. Time
  // and memory are linear in the pickle's length.
  static Document parse(ByteSpan bytes, uint64_t base = 0, size_t* consumed = nullptr,
                        const Limits& limits = {});
  // Parses in the same way, and tells `witness`. Returns the length consumed, and keeps nothing:
  // texts are not copied. The values live as long as the call.
  static size_t parse_for(Witness& witness, ByteSpan bytes, uint64_t base = 0,
                          const Limits& limits = {});

  const Value& root() const { return root_; }
  void set_root(Value value) { root_ = value; }

  // Every distinct global named in the pickle, even by values that were dropped, as "module.name",
  // in order of first appearance.
  const std::vector<std::string>& globals() const { return globals_; }

  // True if the parsed root contains itself. Only then can a walk without marks run forever. In any
  // document, shared values can make such a walk long.
  bool is_cyclic() const { return cyclic_; }

  // Building. Values of other documents must not be put into this one.
  static Value none() { return {}; }
  static Value boolean(bool value);
  static Value integer(int64_t value);
  static Value real(double value);
  // From little-endian two's complement of any length; an integer if the value fits one.
  Value big_integer(std::string_view twos_complement);
  Value string(std::string_view text);  // a new node each time
  // The same node for the same text, like CPython's interned names.
  Value intern(std::string_view text);
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

  void append(const Value& list_or_object, Value item);
  void set_item(const Value& dict_or_object, Value key, Value value);
  void set_state(const Value& object, Value state);

  // The copies of values of other documents, by Value::identity().
  using Copies = std::unordered_map<const void*, Value>;
  // Copies `value`, of another document, with everything it refers to, cycles too. Values in
  // `copies` are not copied again. So sharing is kept, also between calls with the same `copies`,
  // as long as the other documents live. `persistent` is called once for each persistent value, in
  // no particular order. It returns the value of this document that takes its place.
  Value copy(const Value& value, Copies& copies,
             const std::function<Value(const Value& persistent)>& persistent);

 private:
  class Copier;
  class Machine;
  struct Store;
  static size_t run(Document& document, Witness* witness, ByteSpan bytes, uint64_t base,
                    bool may_go_on, const Limits& limits);
  std::unique_ptr<Store> store_;
  Value root_;
  std::vector<std::string> globals_;
  bool cyclic_ = false;
};

// Writes `root` as protocol 2, memoising exactly as CPython's C pickler does. So a value tree with
// the same sharing gives the bytes of pickle.dumps(obj, protocol=2). bytes, sets, keyword
// arguments, nested classes and Python 3 names follow Python's own protocol-2 mapping
// (_codecs.encode, __builtin__...). Cycles through lists, dicts and objects are written as such.
// Throws UnsupportedError for values nested deeper than `max_depth`, which includes cycles through
// tuples alone. Throws it also for texts of 4 GiB and more, and global names that protocol 2 cannot
// spell. `persistent` is called each time a persistent value is written. Only one thread at a time
// may write a document, and none may read it then.
std::string write_protocol2(const Value& root, uint32_t max_depth = 1000,
                            const std::function<void(const Value&)>& persistent = {});

}  // namespace dsckpt::pickle
