#include <charconv>
#include <limits>
#include <optional>
#include <system_error>

#include "base/keyed_hash.h"
#include "base/text.h"
#include "dsckpt/error.h"
#include "pickle/literals.h"
#include "pickle/nodes.h"
#include "pickle/opcodes.h"
#include "pickle/pickle.h"

namespace dsckpt::pickle {
namespace {

// Python refuses to convert longer decimal numbers too (sys.get_int_max_str_digits).
constexpr size_t kMaxDigits = 4300;
// For module and name together. A pickle can name one long text often; no real name is this long.
constexpr size_t kMaxGlobalName = 1000;
// Older protocols have Python 2's names.
constexpr int kFirstPython3 = 3;
// Below this, decoding text anew costs less than remembering it.
constexpr size_t kRememberDecoded = 64;

// Converts UTF-8 text to Latin-1, or returns nullopt if a character does not fit.
std::optional<std::string> to_latin1(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  for (size_t i = 0; i < text.size(); ++i) {
    const auto lead = static_cast<unsigned char>(text[i]);
    if (lead < 0x80) {
      out.push_back(text[i]);
    } else if (lead <= 0xc3) {
      const auto next = static_cast<unsigned char>(text[++i]);
      out.push_back(static_cast<char>((lead & 3) << 6 | (next & 0x3f)));
    } else {
      return std::nullopt;
    }
  }
  return out;
}

// Parses the output of a float's repr().
std::optional<double> float_of(std::string_view text) {
  const bool negative = text.starts_with('-');
  const std::string_view size = text.substr(negative ? 1 : 0);
  double value = 0;
  if (size == "inf" || size == "infinity") {
    value = std::numeric_limits<double>::infinity();
  } else if (size == "nan") {
    value = std::numeric_limits<double>::quiet_NaN();
  } else {
    return real_of(text);
  }
  return negative ? -value : value;
}

// A pickle's memo. Its size is limited: an index must not exceed the number of bytes before it.
class Memo {
 public:
  void put(uint64_t index, Value value) {
    if (index >= values_.size()) values_.resize(index + 1);
    size_ += values_[index] ? 0 : 1;
    values_[index] = value;
  }
  const Value* get(uint64_t index) const {
    return index < values_.size() && values_[index] ? &*values_[index] : nullptr;
  }
  // The number of indices in use, which is MEMOIZE's next index.
  uint64_t size() const { return size_; }

 private:
  std::vector<std::optional<Value>> values_;
  uint64_t size_ = 0;
};

// Reads the bytes of the pickle, and keeps the position of the current opcode for errors.
class Cursor : public ByteReader {
 public:
  using ByteReader::ByteReader;

  uint64_t opcode_at() const { return opcode_at_; }
  [[noreturn]] void fail(const std::string& message) const {
    throw CorruptError({.offset = opcode_at_}, message);
  }

  uint8_t opcode() {
    opcode_at_ = offset();
    return read<uint8_t>();
  }
  // read_argument() calls this.
  uint64_t length(int32_t size) const {
    if (size < 0) fail("negative length");
    return static_cast<uint64_t>(size);
  }

 private:
  uint64_t opcode_at_ = 0;
};

}  // namespace

// Python's unpickler. Its two stacks are one here, with the heights of the marks in a list.
class Document::Machine {
 public:
  // With a witness, `bytes` must outlive the document, and texts are not copied.
  Machine(Document& document, Witness* witness, ByteSpan bytes, uint64_t base)
      : document_(document),
        store_(*document.store_),
        witness_(witness),
        cursor_(bytes, base),
        base_(base) {}

  // Runs until STOP and sets the root.
  void run() {
    for (;;) {
      const uint8_t opcode = cursor_.opcode();
      if (opcode == kStop) break;
      step(opcode);
    }
    document_.root_ = pop();
    if (witness_ != nullptr) witness_->stopped(document_.root_);
  }

  size_t position() const { return cursor_.position(); }

  void check_depth(uint32_t max_depth) { check_depth(document_.root_, max_depth); }

  // Checks values outside the root too: Python would make them all the same.
  void check_depth_of_all(uint32_t max_depth) {
    const auto check = [&](auto& nodes) {
      for (auto& node : nodes) {
        if (node.mark == 0) check_depth(Access::make(node), max_depth);
      }
    };
    check(store_.tuples);
    check(store_.lists);
    check(store_.dicts);
    check(store_.objects);
    check(store_.persistents);
  }

 private:
  // Visits every value below `root` once, without recursion. A reference back to an open container
  // only marks the document as cyclic.
  void check_depth(const Value& root, uint32_t max_depth) {
    struct Frame {
      Node* node;
      size_t index;
      uint32_t below;  // height of the highest child so far
    };
    constexpr uint32_t kOpen = 1;
    std::vector<Frame> path;
    const auto enter = [&](Node* node) {
      if (path.size() >= max_depth) {
        cursor_.fail("values nest deeper than " + std::to_string(max_depth));
      }
      node->mark = kOpen;
      path.push_back({node, 0, 0});
    };
    if (is_container(root.kind())) enter(Access::node(root));
    while (!path.empty()) {
      Frame& top = path.back();
      Node* child = nullptr;
      const bool done = for_each_child(*top.node, top.index, [&](const Value& value) {
        if (!is_container(value.kind())) return true;
        Node* node = Access::node(value);
        if (node->mark == 0) {
          child = node;
          return false;
        }
        if (node->mark == kOpen) {
          document_.cyclic_ = true;
        } else {
          top.below = std::max(top.below, node->mark - kOpen);
        }
        return true;
      });
      if (!done) {
        enter(child);
        continue;
      }
      const uint32_t height = top.below + 1;
      if (height > max_depth - (path.size() - 1)) {
        cursor_.fail("values nest deeper than " + std::to_string(max_depth));
      }
      top.node->mark = height + kOpen;
      path.pop_back();
      if (!path.empty()) path.back().below = std::max(path.back().below, height);
    }
  }

  [[noreturn]] void fail(const std::string& message) const { cursor_.fail(message); }

  // Stack.

  size_t floor() const { return marks_.empty() ? 0 : marks_.back(); }
  void push(Value value) { stack_.push_back(value); }
  void need(size_t count) const {
    if (stack_.size() - floor() < count) fail("too few values on the stack");
  }
  Value& top() {
    need(1);
    return stack_.back();
  }
  Value pop() {
    need(1);
    const Value value = stack_.back();
    stack_.pop_back();
    return value;
  }
  // The values above the last mark. pop_to() drops them.
  std::span<const Value> above_mark() {
    if (marks_.empty()) fail("no mark on the stack");
    return std::span<const Value>(stack_).subspan(marks_.back());
  }
  void drop_mark() {
    stack_.resize(marks_.back());
    marks_.pop_back();
  }

  static std::string excerpt(std::string_view text) {
    std::string out;
    for (const char c : text.substr(0, 40)) out.push_back(c >= ' ' && c <= '~' ? c : '?');
    return out;
  }

  // Values.

  // `text` lies in the pickle.
  void push_text(Kind kind, std::string_view text) {
    if (kind == Kind::string && !is_utf8(text)) fail("text is not UTF-8");
    if (witness_ == nullptr) return push(store_.text(kind, text));
    push(Access::make(store_.texts.emplace_back(kind, text)));
    if (kind != Kind::string) witness_->bytes(text, cursor_.opcode_at());
  }

  // Python 2's str: text if it is ASCII, else bytes.
  static Kind kind_of_python2(std::string_view text) {
    return is_ascii(text) ? Kind::string : Kind::bytes;
  }

  void push_decimal(std::string_view digits) {
    const std::string_view whole = digits;
    bool negative = false;
    if (!digits.empty() && (digits[0] == '-' || digits[0] == '+')) {
      negative = digits[0] == '-';
      digits.remove_prefix(1);
    }
    const bool numeric =
        !digits.empty() && digits.find_first_not_of("0123456789") == std::string_view::npos;
    if (!numeric || digits.size() > kMaxDigits) {
      fail("'" + excerpt(whole) + "' is not an integer");
    }
    // Base 2^32, least significant first.
    std::vector<uint32_t> limbs;
    for (size_t i = 0; i < digits.size();) {
      uint64_t carry = 0;
      uint64_t scale = 1;
      for (; i < digits.size() && scale < 1'000'000'000; ++i, scale *= 10) {
        carry = carry * 10 + static_cast<uint64_t>(digits[i] - '0');
      }
      for (uint32_t& limb : limbs) {
        carry += uint64_t{limb} * scale;
        limb = static_cast<uint32_t>(carry);
        carry >>= 32;
      }
      if (carry != 0) limbs.push_back(static_cast<uint32_t>(carry));
    }
    limbs.push_back(0);  // room for the sign
    if (negative) {
      uint64_t carry = 1;
      for (uint32_t& limb : limbs) {
        carry += static_cast<uint32_t>(~limb);
        limb = static_cast<uint32_t>(carry);
        carry >>= 32;
      }
    }
    push(document_.big_integer(
        {reinterpret_cast<const char*>(limbs.data()), limbs.size() * sizeof(uint32_t)}));
  }

  void push_int_line(std::string_view line) {
    if (line == "00" || line == "01") {
      push(boolean(line == "01"));
    } else {
      push_decimal(line);
    }
  }

  void push_float_line(std::string_view line) {
    std::string_view number = line;
    if (number.starts_with('+') && !number.starts_with("+-")) number.remove_prefix(1);
    const std::optional<double> value = float_of(number);
    if (!value) fail("'" + excerpt(line) + "' is not a float");
    push(real(*value));
  }

  void push_quoted(std::string_view line) {
    const std::string text =
        in_context({.offset = cursor_.opcode_at()}, [&] { return unquote(line); });
    push(store_.text(kind_of_python2(text), text));
  }

  void push_raw_unicode(std::string_view line) {
    push(store_.text(Kind::string, in_context({.offset = cursor_.opcode_at()},
                                              [&] { return decode_raw_unicode(line); })));
  }

  // `module` and `name` must live as long as the store.
  void push_global(std::string_view module, std::string_view name) {
    if (module.size() + name.size() > kMaxGlobalName) {
      fail("a global's name of " + counted(module.size() + name.size(), "byte"));
    }
    const Value value =
        Access::make(store_.globals.emplace_back(module, name, protocol_ < kFirstPython3));
    key_.assign(module).append("\n").append(name);
    if (store_.global_names.try_emplace(key_, value).second) {
      document_.globals_.push_back(std::string(module) + "." + std::string(name));
    }
    if (witness_ != nullptr) witness_->named(value, cursor_.opcode_at());
    push(value);
  }

  void push_global_lines(std::string_view module, std::string_view name) {
    if (!is_utf8(module) || !is_utf8(name)) fail("a global's name is not UTF-8");
    push_global(store_.arena.copy(module), store_.arena.copy(name));
  }

  void push_list(Kind kind, std::span<const Value> items) {
    ListNode& node = store_.list(kind);
    node.items.assign(items.begin(), items.end());
    push(Access::make(node));
  }

  void push_tuple(size_t count) {
    need(count);
    const Value tuple = store_.tuple(std::span<const Value>(stack_).last(count));
    stack_.resize(stack_.size() - count);
    push(tuple);
  }

  // Objects.

  void push_object(ObjectNode::Made made, Value callable, Value arguments, Value keywords = {}) {
    if (!callable.is(Kind::global) && !callable.is(Kind::object) &&
        !callable.is(Kind::persistent)) {
      fail("a call of a " + std::string(to_string(callable.kind())));
    }
    if (!arguments.is(Kind::tuple)) {
      fail("call arguments that are a " + std::string(to_string(arguments.kind())));
    }
    ObjectHolder& node = store_.objects.emplace_back();
    node.object.made = made;
    node.object.callable = callable;
    node.object.arguments = arguments;
    node.object.keywords = keywords;
    push(Access::make(node));
    if (witness_ != nullptr) {
      witness_->called(callable, arguments, stack_.back(), cursor_.opcode_at());
    }
  }

  // Protocols 0 to 2 write bytes as a call of _codecs.encode(text, 'latin1') or bytes().
  bool push_called_bytes(Value callable, Value arguments) {
    if (!callable.is(Kind::global) || !arguments.is(Kind::tuple)) return false;
    const std::span<const Value> items = arguments.as_sequence();
    std::string_view data;
    if (callable.is_global("_codecs", "encode")) {
      if (items.size() != 2 || !items[0].is(Kind::string) || !items[1].is(Kind::string) ||
          (items[1].as_string() != "latin1" && items[1].as_string() != "latin-1")) {
        return false;
      }
      const std::optional<std::string_view> decoded = latin1_of(items[0]);
      if (!decoded) return false;
      data = *decoded;
    } else if (!items.empty() || (!callable.is_global("__builtin__", "bytes") &&
                                  !callable.is_global("builtins", "bytes"))) {
      return false;
    }
    push(Access::make(store_.called_bytes.emplace_back(data, callable, arguments)));
    if (witness_ != nullptr) {
      witness_->called(callable, arguments, stack_.back(), cursor_.opcode_at());
      witness_->bytes(data, cursor_.opcode_at());
    }
    return true;
  }

  // Each text is decoded once, even if many calls share it, so that the time stays linear.
  std::optional<std::string_view> latin1_of(const Value& string) {
    const std::string_view text = string.as_string();
    if (text.size() < kRememberDecoded) {
      if (is_ascii(text)) return text;
      const auto decoded = to_latin1(text);
      if (!decoded) return std::nullopt;
      return store_.arena.copy(*decoded);
    }
    const auto [entry, is_new] = decoded_.try_emplace(string.identity());
    if (is_new) {
      if (is_ascii(text)) {
        entry->second = text;
      } else if (const auto decoded = to_latin1(text)) {
        entry->second = store_.arena.copy(*decoded);
      }
    }
    return entry->second;
  }

  void reduce() {
    const Value arguments = pop();
    const Value callable = pop();
    if (push_called_bytes(callable, arguments)) return;
    push_object(ObjectNode::Made::reduce, callable, arguments);
  }

  void build() {
    const Value state = pop();
    const Value target = top();
    if (!target.is(Kind::object)) {
      fail("state for a " + std::string(to_string(target.kind())));
    }
    if (target.as_object().has_state) fail("state for an object that has it already");
    document_.set_state(target, state);
    if (witness_ != nullptr) witness_->built(target, cursor_.opcode_at());
  }

  void push_persistent(const Value& id) {
    push(document_.persistent(id));
    if (witness_ != nullptr) witness_->persistent(stack_.back(), cursor_.opcode_at());
  }

  // Makes an instance of protocols 0 and 1. If the class is on the stack, it is below the
  // arguments.
  void push_instance(std::optional<Value> named_class) {
    std::span<const Value> items = above_mark();
    if (!named_class) {
      if (items.empty()) fail("OBJ without a class");
      named_class = items[0];
      items = items.subspan(1);
    }
    const Value arguments = store_.tuple(items);
    drop_mark();
    push_object(ObjectNode::Made::inst, *named_class, arguments);
  }

  // Filling.

  void append_to(const Value& target, std::span<const Value> items) {
    std::vector<Value>* list = nullptr;
    if (target.is(Kind::list)) {
      list = &Access::as<ListNode>(target).items;
    } else if (target.is(Kind::object)) {
      list = &Access::as<ObjectHolder>(target).object.items;
      if (witness_ != nullptr) witness_->filled(target, false, cursor_.opcode_at());
    } else {
      fail("items appended to a " + std::string(to_string(target.kind())));
    }
    list->insert(list->end(), items.begin(), items.end());
  }

  void tell_hashed(const Value& key) {
    if (witness_ == nullptr || (!key.is(Kind::tuple) && !key.is(Kind::object))) return;
    witness_->hashed(key, cursor_.opcode_at());
  }

  void add_to(const Value& target, std::span<const Value> items) {
    for (const Value& item : items) tell_hashed(item);
    if (target.is(Kind::set)) {
      auto& list = Access::as<ListNode>(target).items;
      list.insert(list.end(), items.begin(), items.end());
      return;
    }
    if (!target.is(Kind::object)) {
      fail("items added to a " + std::string(to_string(target.kind())));
    }
    append_to(target, items);
  }

  void set_in(const Value& target, std::span<const Value> pairs) {
    if (!target.is(Kind::dict) && !target.is(Kind::object)) {
      fail("keys set in a " + std::string(to_string(target.kind())));
    }
    if (pairs.size() % 2 != 0) fail("a key without a value");
    if (witness_ != nullptr && target.is(Kind::object)) {
      witness_->filled(target, true, cursor_.opcode_at());
    }
    DictNode& dict = target.is(Kind::dict) ? Access::as<DictHolder>(target).dict
                                           : Access::as<ObjectHolder>(target).object.mapping;
    if (dict.items.empty()) dict.items.reserve(pairs.size() / 2);
    for (size_t i = 0; i < pairs.size(); i += 2) {
      tell_hashed(pairs[i]);
      Access::insert(dict, pairs[i], pairs[i + 1]);
    }
  }

  // Returns the value below the last mark. The values above the mark go into it.
  Value marked_target() {
    if (marks_.empty()) fail("no mark on the stack");
    const size_t below = marks_.size() > 1 ? marks_[marks_.size() - 2] : 0;
    if (marks_.back() == below) fail("too few values on the stack");
    return stack_[marks_.back() - 1];
  }

  // Memo.

  // Python's int() also accepts blanks, signs, underscores and leading zeros; picklers write none.
  uint64_t memo_index(std::string_view line) {
    uint64_t index = 0;
    const auto [end, error] = std::from_chars(line.data(), line.data() + line.size(), index);
    if (error != std::errc() || end != line.data() + line.size() ||
        (line.size() > 1 && line.front() == '0')) {
      fail("'" + excerpt(line) + "' is not a memo index");
    }
    return index;
  }

  // A stored value takes at least two bytes, so a pickler's indices are smaller. Python's memo
  // allocates twice the largest index.
  void put(uint64_t index) {
    constexpr uint64_t kFirstFew = 16;
    if (index > (cursor_.opcode_at() - base_) / 2 + kFirstFew) {
      fail("memo index " + std::to_string(index) + ", with fewer bytes before it");
    }
    memo_.put(index, top());
  }
  void get(uint64_t index) {
    const Value* value = memo_.get(index);
    if (value == nullptr) fail("memo " + std::to_string(index) + " is empty");
    push(*value);
    if (witness_ != nullptr && value->is(Kind::global)) {
      witness_->named(*value, cursor_.opcode_at());
    }
  }

  void step(uint8_t opcode);

  Document& document_;
  Store& store_;
  Witness* witness_;
  Cursor cursor_;
  uint64_t base_;
  int protocol_ = 0;
  std::vector<Value> stack_;
  std::vector<size_t> marks_;
  Memo memo_;
  std::unordered_map<const void*, std::optional<std::string_view>> decoded_;
  std::string key_;
};

void Document::Machine::step(uint8_t opcode) {
  if (opcode == kExt1 || opcode == kExt2 || opcode == kExt4) {
    fail("an extension code, which only the program that registered it can resolve");
  }
  const auto argument = read_argument(cursor_, opcode);
  switch (opcode) {
    case kProto:
      if (cursor_.opcode_at() != base_) fail("a protocol behind other opcodes");
      protocol_ = static_cast<int>(argument.number);
      if (protocol_ > 5) fail("pickle protocol " + std::to_string(protocol_));
      return;
    case kFrame:
      if (argument.number > cursor_.remaining()) fail("a frame longer than the pickle");
      return;

    case kNone:
      return push({});
    case kNewTrue:
      return push(boolean(true));
    case kNewFalse:
      return push(boolean(false));
    case kInt:
      return push_int_line(argument.text);
    case kBinInt:
    case kBinInt1:
    case kBinInt2:
      return push(integer(static_cast<int64_t>(argument.number)));
    case kLong: {
      std::string_view line = argument.text;
      if (line.ends_with('L')) line.remove_suffix(1);
      return push_decimal(line);
    }
    case kLong1:
    case kLong4:
      return push(document_.big_integer(argument.text));
    case kFloat:
      return push_float_line(argument.text);
    case kBinFloat:
      return push(real(std::bit_cast<double>(argument.number)));

    case kString:
      return push_quoted(argument.text);
    case kBinString:
    case kShortBinString:
      return push_text(kind_of_python2(argument.text), argument.text);
    case kUnicode:
      return push_raw_unicode(argument.text);
    case kBinUnicode:
    case kShortBinUnicode:
    case kBinUnicode8:
      return push_text(Kind::string, argument.text);
    case kBinBytes:
    case kShortBinBytes:
    case kBinBytes8:
      return push_text(Kind::bytes, argument.text);
    case kByteArray8:
      return push_text(Kind::byte_array, argument.text);
    case kNextBuffer:
      fail("a buffer outside the pickle");
    case kReadOnlyBuffer:
      fail("marks a buffer as read-only, which only buffers outside the pickle can be");

    case kEmptyTuple:
      return push_tuple(0);
    case kTuple1:
      return push_tuple(1);
    case kTuple2:
      return push_tuple(2);
    case kTuple3:
      return push_tuple(3);
    case kTuple: {
      const Value tuple = store_.tuple(above_mark());
      drop_mark();
      return push(tuple);
    }
    case kEmptyList:
      return push_list(Kind::list, {});
    case kEmptySet:
      return push_list(Kind::set, {});
    case kList:
    case kFrozenSet: {
      ListNode& node = store_.list(opcode == kList ? Kind::list : Kind::frozen_set);
      const auto items = above_mark();
      if (opcode == kFrozenSet) {
        for (const Value& item : items) tell_hashed(item);
      }
      node.items.assign(items.begin(), items.end());
      drop_mark();
      return push(Access::make(node));
    }
    case kEmptyDict:
      return push(Access::make(store_.dicts.emplace_back()));
    case kDict: {
      const Value dict = Access::make(store_.dicts.emplace_back());
      set_in(dict, above_mark());
      drop_mark();
      return push(dict);
    }
    case kAppend: {
      const Value item = pop();
      return append_to(top(), {&item, 1});
    }
    case kAppends:
      append_to(marked_target(), above_mark());
      return drop_mark();
    case kAddItems:
      add_to(marked_target(), above_mark());
      return drop_mark();
    case kSetItem: {
      need(3);
      set_in(stack_[stack_.size() - 3], std::span<const Value>(stack_).last(2));
      stack_.resize(stack_.size() - 2);
      return;
    }
    case kSetItems:
      set_in(marked_target(), above_mark());
      return drop_mark();

    case kGlobal:
      return push_global_lines(argument.text, argument.second_text);
    case kStackGlobal: {
      const Value name = pop();
      const Value module = pop();
      if (!module.is(Kind::string) || !name.is(Kind::string)) fail("a global's name is not a str");
      return push_global(module.as_string(), name.as_string());
    }
    case kReduce:
      return reduce();
    case kNewObj: {
      const Value arguments = pop();
      const Value named_class = pop();
      return push_object(ObjectNode::Made::newobj, named_class, arguments);
    }
    case kNewObjEx: {
      const Value keywords = pop();
      const Value arguments = pop();
      const Value named_class = pop();
      if (!keywords.is(Kind::dict)) fail("keyword arguments that are not a dict");
      return push_object(ObjectNode::Made::newobj_ex, named_class, arguments, keywords);
    }
    case kObj:
      return push_instance(std::nullopt);
    case kInst: {
      push_global_lines(argument.text, argument.second_text);
      // pop() would fail if a mark is right below.
      const Value named_class = stack_.back();
      stack_.pop_back();
      return push_instance(named_class);
    }
    case kBuild:
      return build();
    case kPersId:
      if (!is_ascii(argument.text)) fail("a persistent id that is not ASCII");
      return push_persistent(store_.text(Kind::string, argument.text));
    case kBinPersId:
      return push_persistent(pop());

    case kMark:
      marks_.push_back(stack_.size());
      return;
    case kPop:
      // In Python, too, POP directly above a mark removes the mark.
      if (!marks_.empty() && marks_.back() == stack_.size()) {
        marks_.pop_back();
      } else {
        pop();
      }
      return;
    case kPopMark:
      above_mark();
      return drop_mark();
    case kDup:
      fail("DUP, which no pickler writes");
    case kPut:
      return put(memo_index(argument.text));
    case kBinPut:
    case kLongBinPut:
      return put(argument.number);
    case kMemoize:
      return put(memo_.size());
    case kGet:
      return get(memo_index(argument.text));
    case kBinGet:
    case kLongBinGet:
      return get(argument.number);

    default: {
      char text[8];
      std::snprintf(text, sizeof text, "0x%02x", opcode);
      fail(std::string(text) + " is not an opcode");
    }
  }
}

size_t Document::run(Document& document, Witness* witness, ByteSpan bytes, uint64_t base,
                     bool may_go_on, const Limits& limits) {
  if (bytes.size() > limits.max_bytes) {
    if (!may_go_on) {
      throw CorruptError({.offset = base}, "a pickle of " + counted(bytes.size(), "byte") +
                                               "; at most " + std::to_string(limits.max_bytes) +
                                               " are read");
    }
    bytes = bytes.first(static_cast<size_t>(limits.max_bytes));
  }
  Machine machine(document, witness, bytes, base);
  machine.run();
  if (!may_go_on && machine.position() != bytes.size()) {
    throw CorruptError(
        {.offset = base + machine.position()},
        counted(bytes.size() - machine.position(), "byte") + " after the end of the pickle");
  }
  machine.check_depth(limits.max_depth);
  if (witness != nullptr) machine.check_depth_of_all(limits.max_depth);
  return machine.position();
}

Document Document::parse(ByteSpan bytes, uint64_t base, size_t* consumed, const Limits& limits) {
  Document document;
  const size_t end = run(document, nullptr, bytes, base, consumed != nullptr, limits);
  if (consumed != nullptr) *consumed = end;
  return document;
}

size_t Document::parse_for(Witness& witness, ByteSpan bytes, uint64_t base, const Limits& limits) {
  Document document;
  return run(document, &witness, bytes, base, true, limits);
}

}  // namespace dsckpt::pickle
