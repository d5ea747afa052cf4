#include "inspect/pickle_judge.h"

#include <algorithm>
#include <array>
#include <iterator>
#include <limits>
#include <optional>
#include <span>
#include <unordered_map>
#include <utility>

#include "base/dtype_names.h"
#include "base/keyed_hash.h"
#include "dsckpt/dtype.h"
#include "dsckpt/error.h"
#include "inspect/words.h"
#include "inspect/written_calls.h"
#include "pickle/nodes.h"
#include "pickle/pickle.h"

namespace dsckpt {
namespace {

using namespace std::literals;
using pickle::Kind;
using pickle::NamedGlobal;
using pickle::ObjectNode;
using pickle::Value;
using Values = std::span<const Value>;

// Numbers.

std::optional<uint64_t> natural(const Value& value) {
  if (!value.is(Kind::integer) || value.as_int() < 0) return std::nullopt;
  return static_cast<uint64_t>(value.as_int());
}

bool is_number(const Value& value, int64_t number) {
  return (value.is(Kind::integer) || value.is(Kind::boolean)) && value.as_int() == number;
}

bool is_integer(const Value& value) {
  return value.is(Kind::integer) || value.is(Kind::big_integer) || value.is(Kind::boolean);
}

bool is_this_text(const Value& value, std::string_view text) {
  return value.is(Kind::string) && value.as_string() == text;
}

// "-1/3", "2".
bool is_fraction(std::string_view text) {
  if (text.starts_with('-')) text.remove_prefix(1);
  const size_t slash = std::min(text.find('/'), text.size());
  const auto is_digits = [](std::string_view part) {
    return !part.empty() && part.find_first_not_of("0123456789") == std::string_view::npos;
  };
  return is_digits(text.substr(0, slash)) &&
         (slash == text.size() || is_digits(text.substr(slash + 1)));
}

constexpr size_t kMaxDimensions = 64;

// numpy's name of an element type in dtype.__reduce__: a letter and a size in bytes, for U in
// characters.
struct TypeCode {
  char letter = 0;
  uint64_t size = 0;
};

std::optional<TypeCode> type_code(const Value& value) {
  if (!value.is(Kind::string)) return std::nullopt;
  const std::string_view text = value.as_string();
  if (text.size() < 2 || text.size() > 10) return std::nullopt;
  uint64_t size = 0;
  for (const char digit : text.substr(1)) {
    if (digit < '0' || digit > '9') return std::nullopt;
    size = size * 10 + static_cast<uint64_t>(digit - '0');
  }
  struct Sizes {
    char letter;
    std::string_view sizes;  // "": any
  };
  static constexpr Sizes kLetters[] = {
      {'b', "1"},          {'i', "1 2 4 8"}, {'u', "1 2 4 8"}, {'f', "2 4 8 12 16"},
      {'c', "8 16 24 32"}, {'M', "8"},       {'m', "8"},       {'O', "4 8"},
      {'S', ""},           {'U', ""},        {'V', ""}};
  for (const Sizes& entry : kLetters) {
    if (entry.letter != text[0]) continue;
    if (!entry.sizes.empty() && !has_word(entry.sizes, text.substr(1))) return std::nullopt;
    return TypeCode{text[0], size};
  }
  return std::nullopt;
}

// The element type of a dtype whose state was set.
struct ElementType {
  uint64_t size = 0;
  int64_t flags = 0;
  bool is_object() const { return flags == kObjectFlags; }

  // Flags of PyArray_Descr. Objects have all flags that concern references.
  static constexpr int64_t kObjectFlags = 63;
  static constexpr int64_t kTextFlags = 8;
  static constexpr int64_t kStructFlags = 16;
  static constexpr int64_t kAlignedFlag = 128;
};

// Limits the work by the size of the pickle, since calls can share arguments.
constexpr uint64_t kWorkOfByte = 64;
constexpr uint64_t kMinWork = uint64_t{1} << 20;
constexpr size_t kMaxInner = 1000;
constexpr size_t kMaxProblems = 100;
constexpr size_t kMaxAttributes = 1024;

// Calls can share the data that they copy, and so return more bytes than the pickle has. All calls
// together may take some times the file's size, and at least this.
constexpr uint64_t kFreeMemory = uint64_t{48} << 20;
constexpr uint64_t kMemoryOfByte = 8;
constexpr int kMaxHashedDepth = 16;

class Judge final : public pickle::Witness {
 public:
  Judge(PickleOf whose, uint64_t size, uint64_t file_size)
      : whose_(whose),
        work_(kMinWork + kWorkOfByte * size),
        memory_(kFreeMemory + kMemoryOfByte * file_size) {}

  void named(const Value& global, uint64_t at) override {
    Named& entry = names_[index_of(global, at)];
    ++entry.pushes;
  }

  void called(const Value& callable, const Value& arguments, const Value& result,
              uint64_t at) override {
    if (callable.is(Kind::persistent)) {
      NamedGlobal& global = special(NamedGlobal::Form::persistent, at);
      global.uses |= pickle::kCalled;
      return;
    }
    if (!callable.is(Kind::global)) {
      const bool is_made = result.is(Kind::object) &&
                           result.as_object().made == ObjectNode::Made::newobj &&
                           arguments.sequence_or_empty().empty();
      if (is_made && is_inner_class(callable)) return allocate(memory_of(nullptr), at);
      if (Named* maker = maker_of(callable)) maker->judged.named.uses |= pickle::kResultCalled;
      return;
    }
    Named& entry = names_[index_of(callable, at)];
    ++entry.consumed;
    const Values values = arguments.as_sequence();
    allocate(memory_of(entry.row) + size_of_copies(values), at);
    if (result.is(Kind::object) && is_getattr(entry)) return take_attribute(entry, values, at);
    const bool is_made =
        result.is(Kind::object) && (result.as_object().made == ObjectNode::Made::newobj ||
                                    result.as_object().made == ObjectNode::Made::newobj_ex);
    entry.judged.named.uses |= is_made ? pickle::kMade : pickle::kCalled;
    if (is_copyreg(entry)) return make_of_first(entry, values, at);
    if (entry.row == nullptr) return;
    const ObjectNode::Made made =
        result.is(Kind::object) ? result.as_object().made : ObjectNode::Made::reduce;
    // The table has no old-style instances and no calls with keywords.
    const bool is_usual = made == ObjectNode::Made::reduce || made == ObjectNode::Made::newobj;
    if (!is_usual || !fits_row(*entry.row, values)) return refuse(entry, at, kArguments);
    if (result.is(Kind::object)) check_call(entry, values, at);
  }

  void built(const Value& object, uint64_t at) override {
    Named* entry = maker_of(object);
    if (entry == nullptr) return;
    if (is_inner_class(object.as_object().callable) && is_attributes(object.as_object().state)) {
      return allocate(size_of_copies(Values(&object.as_object().state, 1)), at);
    }
    entry->judged.named.uses |= pickle::kBuilt;
    const Value& state = object.as_object().state;
    allocate(size_of_copies(Values(&state, 1)) + size_of_copies(state.sequence_or_empty()), at);
    if (entry->row == nullptr) {
      if (has_dunder_key(state)) refuse(*entry, at, "a state that replaces what Python calls");
      return;
    }
    if ((entry->row->uses & pickle::kBuilt) == 0 || !fits_state(*entry->row, object)) {
      refuse(*entry, at, "a state that no writer gives it");
    }
  }

  void filled(const Value& object, bool with_keys, uint64_t at) override {
    Named* entry = maker_of(object);
    if (entry == nullptr) return;
    entry->judged.named.uses |= pickle::kFilled;
    if (entry->row == nullptr) return;
    const bool is_deque = has_word(entry->row->names, "deque");
    if ((entry->row->uses & pickle::kFilled) == 0 || with_keys == is_deque) {
      refuse(*entry, at, "items put into it");
    }
  }

  void persistent(const Value& persistent, uint64_t at) override {
    const Values id = persistent.persistent_id().sequence_or_empty();
    const bool is_storage = persistent.persistent_id().is(Kind::tuple) &&
                            (fits("xkxxi", id) || fits("xkxxin", id) || fits("xkxxi(xii)", id)) &&
                            is_this_text(id[0], "storage");
    if (whose_ != PickleOf::torch || !is_storage) {
      // The source of a module's class, which torch compares with the imported class.
      const bool is_module = fits("xvxx", id) && is_this_text(id[0], "module");
      if (whose_ != PickleOf::torch || !is_module) {
        problem(at, "a persistent id that torch does not write");
      }
      return;
    }
    claim(id, at);
  }

  void hashed(const Value& value, uint64_t at) override {
    if (!can_be_hashed(value, 0)) problem(at, "a key that takes long to hash");
  }

  void bytes(std::string_view bytes, uint64_t at) override {
    const bool is_pickle = bytes.size() > 2 && bytes[0] == '\x80' && bytes[1] <= 5;
    if (!is_pickle && !bytes.starts_with("PK\3\4")) return;
    if (out_.inner.size() >= kMaxInner) return problem(at, "too many bytes like pickles");
    out_.inner.push_back({std::string(bytes), at});
  }

  void stopped(const Value& root) override {
    if (!root.is(Kind::list)) return;
    for (const Value& key : root.as_sequence()) {
      if (!key.is(Kind::string)) return out_.keys.clear();
      out_.keys.emplace_back(key.as_string());
    }
  }

  Judgement judgement(uint64_t end) {
    out_.end = end;
    for (Named& entry : names_) {
      if (entry.pushes > entry.consumed) entry.judged.named.uses |= pickle::kNamed;
      out_.globals.push_back(std::move(entry.judged));
    }
    return std::move(out_);
  }

 private:
  static constexpr const char* kArguments = "arguments that no writer gives it";

  struct Named {
    JudgedGlobal judged;
    const WrittenCall* row = nullptr;  // nullptr: not in the table
    uint64_t pushes = 0;
    uint64_t consumed = 0;
  };

  // Names.

  NamedGlobal& special(NamedGlobal::Form form, uint64_t at) {
    for (Named& entry : names_) {
      if (entry.judged.named.form == form) return entry.judged.named;
    }
    Named& entry = names_.emplace_back();
    entry.judged.named.form = form;
    entry.judged.named.offset = at;
    return entry.judged.named;
  }

  size_t index_of(const Value& global, uint64_t at) {
    const auto [known, is_new_node] = by_node_.try_emplace(global.identity(), names_.size());
    if (!is_new_node) return known->second;
    const auto [module, name] = global.as_global();
    const auto [found, is_new] =
        by_name_.try_emplace(std::string(module) + "\n" + std::string(name), names_.size());
    known->second = found->second;
    if (is_new) {
      Named& entry = names_.emplace_back();
      entry.judged.named.module = module;
      entry.judged.named.name = name;
      entry.judged.named.offset = at;
      entry.row = written_call(module, name);
    }
    return found->second;
  }

  Named* known(const Value& global) {
    const auto found = by_node_.find(global.identity());
    return found == by_node_.end() ? nullptr : &names_[found->second];
  }

  // Returns the callable that made `object`. For a function of copyreg, it is the class of the
  // object.
  Named* maker_of(Value object) {
    while (object.is(Kind::object)) {
      const ObjectNode& node = object.as_object();
      if (node.callable.is(Kind::global)) {
        Named* entry = known(node.callable);
        const Values values = node.arguments.sequence_or_empty();
        if (entry != nullptr && is_copyreg(*entry) && !values.empty() &&
            values[0].is(Kind::global)) {
          return known(values[0]);
        }
        return entry;
      }
      if (!spend(1)) return nullptr;
      object = node.callable;
    }
    return nullptr;
  }

  static std::pair<std::string_view, std::string_view> new_name(const Named& entry) {
    return pickle::python3_name(entry.judged.named.module, entry.judged.named.name);
  }
  static bool is_getattr(const Named& entry) {
    return new_name(entry) == std::pair{"builtins"sv, "getattr"sv};
  }
  static bool is_copyreg(const Named& entry) {
    return entry.row != nullptr && entry.row->module == "copyreg";
  }

  // Refusals.

  std::string placed(uint64_t at, std::string_view what) {
    return "at " + std::to_string(at) + ": " + std::string(what);
  }
  void problem(uint64_t at, std::string_view what) {
    if (out_.problems.size() < kMaxProblems) out_.problems.push_back(placed(at, what));
  }
  void refuse(Named& entry, uint64_t at, std::string_view what) {
    if (entry.judged.problem.empty()) entry.judged.problem = placed(at, what);
  }

  bool spend(uint64_t work) {
    if (work_ >= work) {
      work_ -= work;
      return true;
    }
    if (!is_spent_) out_.problems.push_back("more shared values than its bytes have");
    is_spent_ = true;
    return false;
  }

  // Memory that 64-bit CPython allocates.

  static uint64_t memory_of(const WrittenCall* row) {
    constexpr uint64_t kGenerator = 6000;
    constexpr uint64_t kDeque = 800;
    constexpr uint64_t kTensor = 600;
    constexpr uint64_t kAnything = 150;
    if (row == nullptr) return kAnything;
    if (row->gives == 'G' || has_word(row->names, "Generator")) return kGenerator;
    if (has_word(row->names, "deque")) return kDeque;
    return row->gives == 't' ? kTensor : kAnything;
  }

  static uint64_t size_of_copies(Values values) {
    constexpr uint64_t kOfItem = 40;
    uint64_t size = 0;
    for (const Value& value : values) {
      if (value.is(Kind::string)) {
        size += value.as_string().size();
      } else if (is_bytes(value)) {
        size += value.as_bytes().size();
      } else if (value.is(Kind::dict)) {
        size += kOfItem * value.as_dict().items.size();
      } else if (value.is(Kind::list) || value.is(Kind::tuple)) {
        size += kOfItem * value.as_sequence().size();
      }
    }
    return size;
  }

  void allocate(uint64_t size, uint64_t at) {
    if (memory_ >= size) {
      memory_ -= size;
      return;
    }
    if (!is_full_) problem(at, "calls that make more than some times the file's size");
    is_full_ = true;
  }

  // Python hashes all parts of a value, a shared part repeatedly. This counts the same work, and
  // fails if too much is left. An object counts with the arguments and the state that it was made
  // of.
  bool can_be_hashed(const Value& value, int depth) {
    if (!spend(1) || depth > kMaxHashedDepth) return false;
    const auto can_all = [&](Values values) {
      return std::all_of(values.begin(), values.end(),
                         [&](const Value& part) { return can_be_hashed(part, depth + 1); });
    };
    if (value.is(Kind::tuple)) return can_all(value.as_sequence());
    if (!value.is(Kind::object)) return true;
    const ObjectNode& object = value.as_object();
    if (!can_all(object.arguments.as_sequence())) return false;
    if (!object.state.is(Kind::dict)) return can_all(object.state.sequence_or_empty());
    const auto& items = object.state.as_dict().items;
    return std::all_of(items.begin(), items.end(),
                       [&](const auto& item) { return can_be_hashed(item.second, depth + 1); });
  }

  // Calls.

  void take_attribute(Named& getattr, Values values, uint64_t at) {
    if (values.size() != 2 || !values[0].is(Kind::global) || !values[1].is(Kind::string)) {
      getattr.judged.named.uses |= pickle::kCalled;
      return refuse(getattr, at, kArguments);
    }
    Named* owner = known(values[0]);
    if (owner == nullptr) return refuse(getattr, at, kArguments);
    const NamedGlobal& name = owner->judged.named;
    auto& attributes = getattr.judged.named.attributes;
    const NamedGlobal::Attribute attribute{name.module, name.name,
                                           std::string(values[1].as_string())};
    if (std::find(attributes.begin(), attributes.end(), attribute) != attributes.end()) return;
    if (attributes.size() >= kMaxAttributes) return refuse(getattr, at, kArguments);
    attributes.push_back(attribute);
  }

  // Returns whether the value is the result of getattr, a class of the table.
  bool is_inner_class(const Value& value) {
    if (!value.is(Kind::object) || !value.as_object().callable.is(Kind::global)) return false;
    const Named* function = known(value.as_object().callable);
    const Values values = value.as_object().arguments.sequence_or_empty();
    if (function == nullptr || !is_getattr(*function) || values.size() != 2 ||
        !values[0].is(Kind::global) || !values[1].is(Kind::string)) {
      return false;
    }
    const Named* owner = known(values[0]);
    return owner != nullptr && is_inner_class_of(owner->judged.named.module,
                                                 owner->judged.named.name, values[1].as_string());
  }

  // _reconstructor(class, object, None), (class, base, value); __newobj__(class, ...).
  void make_of_first(Named& function, Values values, uint64_t at) {
    if (values.empty() || !values[0].is(Kind::global)) return refuse(function, at, kArguments);
    Named* made = known(values[0]);
    if (made == nullptr) return refuse(function, at, kArguments);
    ++made->consumed;
    made->judged.named.uses |= pickle::kMade;
    Values rest = values.subspan(1);
    if (function.judged.named.name == "_reconstructor") {
      if (rest.size() != 2 || !rest[0].is(Kind::global)) return refuse(function, at, kArguments);
      Named* base = known(rest[0]);
      const std::string_view base_name =
          base == nullptr ? std::string_view() : new_name(*base).second;
      if (base != nullptr) ++base->consumed;
      const bool is_object = base_name == "object" && rest[1].is_none();
      if (!is_object && !has_word("dict float int list str tuple unicode", base_name)) {
        return refuse(function, at, kArguments);
      }
      rest = rest.subspan(is_object ? 2 : 1);
    }
    if (made->row == nullptr) return;
    if ((made->row->uses & pickle::kMade) == 0 || !fits_row(*made->row, rest)) {
      refuse(*made, at, kArguments);
    }
  }

  bool fits_row(const WrittenCall& row, Values values) { return fits_any(row.arguments, values); }

  // Returns how many elements a byte of the storage holds.
  static uint64_t packed_in(const Value& storage) {
    if (!storage.is(Kind::global)) return 1;
    const std::string_view name = storage.as_global().second;
    return name == "QUInt4x2Storage" ? 2 : name == "QUInt2x4Storage" ? 4 : 1;
  }

  // Checks rules that patterns cannot express.
  void check_call(Named& entry, Values values, uint64_t at) {
    const std::string_view name = entry.judged.named.name;
    if (name == "_rebuild_from_type" || name == "_rebuild_from_type_v2") {
      Named* function = known(values[0]);
      const bool is_call = function != nullptr && function->row != nullptr &&
                           values[2].is(Kind::tuple) &&
                           fits_row(*function->row, values[2].as_sequence());
      if (!is_call) refuse(entry, at, kArguments);
    } else if (name == "scalar" || name == "_frombuffer") {
      const Value& type = values[name == "scalar" ? 0 : 1];
      const Value& data = values[name == "scalar" ? 1 : 0];
      const ElementType element = types_.at(type.identity());
      const auto count = name == "scalar" ? std::optional<uint64_t>(1) : elements_of(values[2]);
      if (element.is_object() || !holds(count, element.size, data)) refuse(entry, at, kArguments);
    } else if (name == "_rebuild_qtensor") {
      // The function makes an empty tensor of this size before it takes the storage.
      const Values id = values[0].persistent_id().sequence_or_empty();
      const auto count = elements_of(values[2]);
      const auto most = id.size() < 5 ? std::nullopt : natural(id[4]);
      if (!count || !most || *count / packed_in(id[1]) > *most) refuse(entry, at, kArguments);
    } else if (name == "set" || name == "frozenset") {
      for (const Value& item : values[0].as_sequence()) {
        hashed(item, at);
      }
    }
  }

  // Patterns.

  bool fits_any(std::string_view patterns, Values values) {
    for (;;) {
      const size_t bar = patterns.find('|');
      if (fits(patterns.substr(0, bar), values)) return true;
      if (bar == std::string_view::npos) return false;
      patterns.remove_prefix(bar + 1);
    }
  }

  bool fits(std::string_view pattern, Values values) {
    size_t next = 0;
    bool may_end = false;
    for (size_t at = 0; at < pattern.size(); ++at) {
      if (pattern[at] == '?') {
        may_end = true;
        continue;
      }
      if (at + 1 < pattern.size() && pattern[at + 1] == '*') {
        return std::all_of(values.begin() + static_cast<std::ptrdiff_t>(next), values.end(),
                           [&](const Value& value) { return accepts(pattern[at], value); });
      }
      if (next == values.size()) return may_end;
      const Value& value = values[next++];
      if (pattern[at] != '(') {
        if (!accepts(pattern[at], value)) return false;
        continue;
      }
      const size_t close = pattern.find(')', at);  // of a tuple without an inner tuple
      const size_t inner_open = pattern.find('(', at + 1);
      const size_t end = inner_open < close ? pattern.find(')', close + 1) : close;
      if (!value.is(Kind::tuple) ||
          !fits(pattern.substr(at + 1, end - at - 1), value.as_sequence())) {
        return false;
      }
      at = end;
    }
    return next == values.size();
  }

  bool accepts(char letter, const Value& value) {
    if (!spend(1)) return false;
    switch (letter) {
      case 'i':
        return is_integer(value);
      case 'r':
        return value.is(Kind::real);
      case 'b':
        return value.is(Kind::boolean);
      case '0':
        return is_number(value, 0);
      case '1':
        return is_number(value, 1);
      case 'w':
        return !value.is(Kind::global);
      case 'v':
        return true;
      case 'x':
        return value.is(Kind::string);
      case 'B':
        return is_bytes(value);
      case 'e':
        return is_this_text(value, "latin1") || is_this_text(value, "latin-1");
      case 'n':
        return is_plain(value);
      case 'q':
        return value.is(Kind::string) && is_fraction(value.as_string());
      case 'L':
        return value.is(Kind::list);
      case 'M':
        return value.is(Kind::dict);
      case 'I':
        return is_shape(value) || is(letter, value);
      case 'J':
        return is_shape(value);
      case 's':
        return value.is(Kind::persistent);
      case 'F':
      case 'T':
        return value.is(Kind::global) && (is(letter, value) || is_unknown(value));
      case 'A':
        return is_attributes(value);
      case 'S':
        return is_attributes(value) || (value.is(Kind::tuple) && is_state_pair(value));
      case 'C':
        return is_generator_state(value, 0);
      case 'K':
        return type_code(value).has_value();
      case 'D':
        return types_.contains(value.identity());
      case 'Z':
        return value.is(Kind::tuple) && value.as_sequence().size() == 1 &&
               is_number(value.as_sequence()[0], 0);
      case 'Y':
        return (value.is(Kind::bytes) && value.as_bytes() == "b") || is_this_text(value, "b");
      default:
        return is(letter, value);
    }
  }

  // Returns whether a name, or the callable of a result, has the role of the letter.
  bool is(char letter, const Value& value) {
    if (value.is(Kind::global)) {
      const Named* entry = known(value);
      return entry != nullptr && entry->row != nullptr && entry->row->is == letter;
    }
    const Named* maker = maker_of(value);
    return maker != nullptr && maker->row != nullptr && maker->row->gives == letter;
  }

  bool is_unknown(const Value& global) {
    const Named* entry = known(global);
    return entry != nullptr && entry->row == nullptr;
  }

  // Python 2's str is read as bytes.
  static bool is_bytes(const Value& value) {
    return value.is(Kind::bytes) || value.is(Kind::byte_array);
  }

  bool is_plain(const Value& value) {
    switch (value.kind()) {
      case Kind::none:
      case Kind::boolean:
      case Kind::integer:
      case Kind::big_integer:
      case Kind::real:
      case Kind::string:
      case Kind::bytes:
      case Kind::byte_array:
        return true;
      case Kind::object:
        return is('n', value);
      default:
        return false;
    }
  }

  bool is_shape(const Value& value) {
    if (!value.is(Kind::tuple)) return false;
    const Values sizes = value.as_sequence();
    return sizes.size() <= kMaxDimensions && spend(sizes.size()) &&
           std::all_of(sizes.begin(), sizes.end(),
                       [](const Value& size) { return natural(size).has_value(); });
  }

  // Dicts.

  static bool is_dunder(const Value& key) {
    return key.is(Kind::string) && key.as_string().starts_with("__");
  }

  // Visits each item of a dict once. New keys stand at the end.
  template <typename Fits>
  bool all_keys(const Value& dict, Fits&& fits) {
    const auto& items = dict.as_dict().items;
    size_t& seen = seen_keys_[dict.identity()];
    const size_t begin = std::exchange(seen, items.size());
    if (!spend(items.size() - std::min(begin, items.size()))) return false;
    const bool do_fit =
        std::all_of(items.begin() + static_cast<std::ptrdiff_t>(std::min(begin, items.size())),
                    items.end(), [&](const auto& item) { return fits(item.first); });
    if (!do_fit) seen = begin;
    return do_fit;
  }

  bool is_attributes(const Value& value) {
    return value.is(Kind::dict) && all_keys(value, [](const Value& key) {
             return key.is(Kind::string) && !is_dunder(key);
           });
  }

  // Returns whether an object of an unknown class would get an attribute like `__class__`.
  bool has_dunder_key(const Value& state) {
    const auto is_bad = [&](const Value& value) {
      return value.is(Kind::dict) &&
             std::any_of(value.as_dict().items.begin(), value.as_dict().items.end(),
                         [&](const auto& item) { return spend(1) && is_dunder(item.first); });
    };
    const Values parts = state.sequence_or_empty();
    return is_bad(state) || (parts.size() == 2 && (is_bad(parts[0]) || is_bad(parts[1])));
  }

  bool is_state_pair(const Value& state) {
    const Values parts = state.as_sequence();
    return parts.size() == 2 && (parts[0].is_none() || is_attributes(parts[0])) &&
           (parts[1].is_none() || is_attributes(parts[1]));
  }

  bool is_generator_state(const Value& value, int depth) {
    constexpr std::pair<std::string_view, int64_t> kPlaces[] = {{"pos", 624}, {"buffer_pos", 4}};
    if (!value.is(Kind::dict) || depth > 3) return false;
    const auto& items = value.as_dict().items;
    return spend(items.size()) && std::all_of(items.begin(), items.end(), [&](const auto& item) {
             if (!item.first.is(Kind::string)) return false;
             for (const auto& [key, most] : kPlaces) {
               if (item.first.as_string() != key) continue;
               const auto place = natural(item.second);
               return place && *place <= static_cast<uint64_t>(most);
             }
             return is_plain(item.second) || is('a', item.second) ||
                    is_generator_state(item.second, depth + 1);
           });
  }

  // States.

  bool fits_state(const WrittenCall& row, const Value& object) {
    const Value& state = object.as_object().state;
    if (row.state == "#") return is_dtype_state(object, state);
    if (row.state == "@") return is_array_state(state);
    return fits_any(row.state, Values(&state, 1));
  }

  // Arrays. numpy/_core/src/multiarray: arraydescr_reduce, array_reduce.

  std::optional<uint64_t> elements_of(const Value& shape) {
    if (!is_shape(shape)) return std::nullopt;
    uint64_t count = 1;
    for (const Value& size : shape.as_sequence()) {
      if (__builtin_mul_overflow(count, *natural(size), &count)) return std::nullopt;
    }
    return count;
  }

  static bool holds(std::optional<uint64_t> count, uint64_t size, const Value& data) {
    uint64_t bytes = 0;
    if (!count || __builtin_mul_overflow(*count, size, &bytes)) return false;
    if (is_bytes(data)) return data.as_bytes().size() == bytes;
    // A str of Python 2.
    return data.is(Kind::string) && data.as_string().size() == bytes;
  }

  // (version, shape, type, is Fortran's, data). NumPy before 1.0 has no version.
  bool is_array_state(const Value& state) {
    Values parts = state.is(Kind::tuple) ? state.as_sequence() : Values();
    if (parts.size() == 5 && is_number(parts[0], 1)) parts = parts.subspan(1);
    if (parts.size() != 4 || !accepts('D', parts[1]) ||
        !(parts[2].is(Kind::boolean) || is_number(parts[2], 0) || is_number(parts[2], 1))) {
      return false;
    }
    const ElementType element = types_.at(parts[1].identity());
    const auto count = elements_of(parts[0]);
    if (!element.is_object()) return holds(count, element.size, parts[3]);
    return count && parts[3].is(Kind::list) && parts[3].as_sequence().size() == *count;
  }

  // (version, byte order, base, names, fields, size, alignment, flags, metadata since version 4).
  bool is_dtype_state(const Value& type, const Value& state) {
    const Values arguments = type.as_object().arguments.as_sequence();
    const auto code = arguments.empty() ? std::nullopt : type_code(arguments[0]);
    const Values parts = state.is(Kind::tuple) ? state.as_sequence() : Values();
    if (!code || parts.size() < 8 || !is_number(parts[0], parts.size() == 8 ? 3 : 4)) return false;
    const bool is_time = code->letter == 'M' || code->letter == 'm';
    if (parts.size() > 9 || !is_byte_order(*code, parts[1])) return false;
    if (parts.size() == 9 && !fits_any(is_time ? "(n(Biii))|(C(Biii))" : "n|C", parts.subspan(8))) {
      return false;
    }
    ElementType element{.size = code->letter == 'U' ? 4 * code->size : code->size};
    auto size = static_cast<int64_t>(element.size);
    int64_t alignment = 1;
    const bool is_simple = parts[2].is_none() && parts[3].is_none() && parts[4].is_none();
    switch (code->letter) {
      case 'S':
        break;
      case 'U':
        alignment = 4;
        element.flags = ElementType::kTextFlags;
        break;
      case 'V':
        if (is_simple) break;
        return is_structure(type, parts, element);
      default:
        size = alignment = -1;
        if (code->letter == 'O') element.flags = ElementType::kObjectFlags;
    }
    const bool is_right = is_simple && is_number(parts[5], size) &&
                          is_number(parts[6], alignment) && is_number(parts[7], element.flags);
    if (is_right) types_.emplace(type.identity(), element);
    return is_right;
  }

  static bool is_byte_order(const TypeCode& code, const Value& value) {
    const bool has_none =
        code.size == 1 || std::string_view("SVO").find(code.letter) != std::string_view::npos;
    if (has_none && code.letter != 'U') return is_this_text(value, "|");
    return is_this_text(value, "<") || is_this_text(value, ">");
  }

  // Accepts an array of one type, or fields inside the element, without objects.
  bool is_structure(const Value& type, Values parts, ElementType whole) {
    const auto alignment = natural(parts[6]);
    if (!is_number(parts[5], static_cast<int64_t>(whole.size)) || !alignment || *alignment > 16) {
      return false;
    }
    if (!(parts[2].is_none() ? has_fields_inside(parts, whole) : is_row_of(parts, whole))) {
      return false;
    }
    types_.emplace(type.identity(), whole);
    return true;
  }

  bool is_row_of(Values parts, ElementType& whole) {
    if (!fits("(DI)", parts.subspan(2, 1)) || !parts[3].is_none() || !parts[4].is_none()) {
      return false;
    }
    const Values base = parts[2].as_sequence();
    const ElementType element = types_.at(base[0].identity());
    const auto count = elements_of(base[1]);
    whole.flags = element.flags;
    uint64_t size = 0;
    return count && !element.is_object() && is_number(parts[7], whole.flags) &&
           !__builtin_mul_overflow(*count, element.size, &size) && size == whole.size;
  }

  bool has_fields_inside(Values parts, ElementType& whole) {
    if (!parts[3].is(Kind::tuple) || !parts[4].is(Kind::dict)) return false;
    const Values names = parts[3].as_sequence();
    const auto& fields = parts[4].as_dict();
    if (!spend(names.size() + fields.items.size()) || names.empty()) return false;
    for (const Value& name : names) {
      if (!name.is(Kind::string) || fields.find(name.as_string()) == nullptr) return false;
    }
    int64_t flags = ElementType::kStructFlags;
    for (const auto& [name, value] : fields.items) {
      if (!name.is(Kind::string) || !fits("(Di?x)", Values(&value, 1))) return false;
      const Values field = value.as_sequence();
      const ElementType element = types_.at(field[0].identity());
      const auto offset = natural(field[1]);
      if (!offset || element.is_object() || element.size > whole.size ||
          *offset > whole.size - element.size) {
        return false;
      }
      flags |= element.flags & (ElementType::kTextFlags | ElementType::kStructFlags);
    }
    whole.flags = flags;
    // NumPy 1 writes the flags as a signed char.
    const int64_t aligned = flags | ElementType::kAlignedFlag;
    return is_number(parts[7], flags) || is_number(parts[7], aligned) ||
           is_number(parts[7], aligned - 256);
  }

  // Storages.

  void claim(Values id, uint64_t at) {
    const auto [module, name] = id[1].as_global();
    ClaimedStorage storage{.key = std::string(id[2].as_string()), .offset = at};
    if (!name.ends_with("UntypedStorage")) {
      const auto dtype = dtype_from_storage_class(name);
      if (!dtype) return problem(at, "a storage of no known type");
      storage.item = size_of(*dtype);
    }
    const auto count = natural(id[4]);
    if (!count || __builtin_mul_overflow(*count, storage.item, &storage.bytes)) {
      return problem(at, "a storage of no size");
    }
    const auto [known, is_new] = storages_.try_emplace(storage.key, storage.bytes);
    if (is_new) {
      out_.storages.push_back(std::move(storage));
    } else if (known->second != storage.bytes) {
      problem(at, "a storage of two sizes");
    }
  }

  PickleOf whose_;
  uint64_t work_;
  bool is_spent_ = false;
  uint64_t memory_;
  bool is_full_ = false;
  Judgement out_;
  std::vector<Named> names_;
  std::unordered_map<const void*, size_t> by_node_;
  KeyedMap<std::string, size_t> by_name_;
  std::unordered_map<const void*, ElementType> types_;
  std::unordered_map<const void*, size_t> seen_keys_;
  KeyedMap<std::string, uint64_t> storages_;
};

}  // namespace

Judgement judge(ByteSpan bytes, PickleOf whose, uint64_t file_size, uint64_t base) {
  Judge judge(whose, bytes.size(), file_size);
  const size_t end = pickle::Document::parse_for(judge, bytes, base);
  return judge.judgement(end);
}

}  // namespace dsckpt
