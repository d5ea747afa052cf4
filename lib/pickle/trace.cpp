#include "pickle/trace.h"

#include <charconv>
#include <map>
#include <optional>
#include <span>
#include <string_view>
#include <utility>

#include "base/bytes.h"
#include "base/keyed_hash.h"
#include "dsckpt/error.h"
#include "pickle/literals.h"
#include "pickle/nodes.h"
#include "pickle/opcodes.h"

namespace dsckpt::pickle {
namespace {

// No real name is longer.
constexpr size_t kMaxName = 1000;
// Limits stack and memo to some hundred megabytes.
constexpr size_t kMaxValues = size_t{1} << 23;
constexpr size_t kMaxElements = size_t{1} << 24;  // of tuples, in all
constexpr size_t kMaxGlobals = size_t{1} << 16;
constexpr size_t kMaxAttributes = 1024;
constexpr uint64_t kWindow = uint64_t{64} << 10;
constexpr uint64_t kSmallWindow = 4096;

// Thrown to end a trace.
struct Broken {
  std::string why;
  bool is_cut = false;
  bool is_truncated = false;
};

// A cursor over a source, with one window of it in memory. It skips texts and lines of any length.
class TraceCursor {
 public:
  struct Text {
    uint64_t at = 0;
    uint64_t size = 0;
  };

  TraceCursor(const ByteSource& source, uint64_t at, uint64_t window)
      : source_(source), at_(at), window_size_(window) {}

  uint64_t at() const { return at_; }

  template <typename Number>
  Number read() {
    uint64_t value = 0;
    for (size_t i = 0; i < sizeof(Number); ++i) value |= uint64_t{byte()} << 8 * i;
    return static_cast<Number>(value);
  }

  Text text(uint64_t size) {
    if (size > source_.size() - at_) throw Broken{"the bytes end inside the pickle", false, true};
    at_ += size;
    return {at_ - size, size};
  }

  // Python fails at a negative size.
  static uint64_t length(int32_t size) { return static_cast<uint32_t>(size); }

  // In Python the end of the bytes also ends a line.
  Text line() {
    Text line{at_, 0};
    while (at_ < source_.size()) {
      if (byte() == '\n') return line;
      ++line.size;
    }
    return line;
  }

  // Returns the first kMaxName bytes of a text, and one more if it is longer.
  std::string beginning(const Text& text) {
    const uint64_t behind = std::exchange(at_, text.at);
    std::string out;
    const uint64_t kept = std::min<uint64_t>(text.size, kMaxName + 1);
    while (out.size() < kept) out.push_back(static_cast<char>(byte()));
    at_ = behind;
    return out;
  }

 private:
  uint8_t byte() {
    if (at_ < begin_ || at_ - begin_ >= window_.size()) {
      window_ = source_.read(at_, window_size_);
      begin_ = at_;
      if (window_.empty()) throw Broken{"the bytes end inside the pickle", false, true};
    }
    return static_cast<uint8_t>(window_[static_cast<size_t>(at_++ - begin_)]);
  }

  const ByteSource& source_;
  uint64_t at_;
  uint64_t window_size_;
  std::vector<std::byte> window_;
  uint64_t begin_ = 0;
};

std::string not_an_opcode(uint8_t opcode) {
  char text[8];
  std::snprintf(text, sizeof text, "0x%02x", opcode);
  return std::string(text) + " is not an opcode";
}

// Returns the text that the opcode at `at` pushes, or nullopt if it cannot be a name.
std::optional<std::string> text_at(const ByteSource& source, uint64_t at) {
  TraceCursor cursor(source, at, kSmallWindow);
  const auto opcode = cursor.read<uint8_t>();
  std::string text = cursor.beginning(read_argument(cursor, opcode).text);
  try {
    if (opcode == kString) text = unquote(text);
    if (opcode == kUnicode) text = decode_raw_unicode(text);
  } catch (const CorruptError&) {
    return std::nullopt;
  }
  if (text.size() > kMaxName) return std::nullopt;
  return text;
}

class Tracer {
 public:
  explicit Tracer(const ByteSource& source) : source_(source), cursor_(source, 0, kWindow) {}

  Trace run() {
    try {
      for (;;) {
        opcode_at_ = cursor_.at();
        const auto opcode = cursor_.read<uint8_t>();
        if (opcode == kStop) {
          if (stack_.size() <= floor()) die();
          break;
        }
        step(opcode);
        if (stack_.size() + memo_.size() > kMaxValues || elements_.size() > kMaxElements)
          throw Broken{"more values than are followed", true};
      }
      trace_.end = cursor_.at();
    } catch (const Broken& broken) {
      trace_.end = opcode_at_;
      trace_.problem = broken.why;
      trace_.is_cut = broken.is_cut;
      trace_.is_truncated = broken.is_truncated;
      if (!broken.is_cut) die();
    }
    for (size_t i = 0; i < trace_.globals.size(); ++i) {
      if (pushes_[i] > consumed_[i]) trace_.globals[i].uses |= kNamed;
    }
    return std::move(trace_);
  }

 private:
  // The facts that are known about a value.
  struct Known {
    enum Kind : uint8_t {
      other,       // unknown
      plain,       // a number, a truth value, None or bytes
      text,        // `what`: the position of its opcode
      tuple,       // `what`: index of the first element; in the lower half, their number
      container,   // a list, dict or set with any content
      global,      // `what`: its index
      result,      // of a call of the global `what`
      persistent,  // the object of a persistent id
    };
    Kind kind = other;
    uint64_t what = 0;

    bool is_never_called() const {
      return kind == plain || kind == text || kind == tuple || kind == container;
    }
  };

  // Every unpickler fails here.
  void die() { trace_.died = std::min(trace_.died, opcode_at_); }

  // Stack.

  size_t floor() const { return marks_.empty() ? 0 : marks_.back(); }
  void push(Known value) {
    if (value.kind == Known::global) ++pushes_[value.what];
    stack_.push_back(value);
  }
  Known pop() {
    if (stack_.size() <= floor()) {
      die();
      return {};
    }
    const Known value = stack_.back();
    stack_.pop_back();
    return value;
  }
  void pop(size_t count) {
    while (count-- > 0) pop();
  }
  Known top() {
    if (stack_.size() <= floor()) {
      die();
      return {};
    }
    return stack_.back();
  }
  // Drops the last mark and the values above it.
  void drop_mark() {
    if (marks_.empty()) die();
    stack_.resize(floor());
    if (!marks_.empty()) marks_.pop_back();
  }
  size_t above_mark() const { return stack_.size() - floor(); }

  // Names.

  size_t add(NamedGlobal::Form form, std::string module, std::string name) {
    const auto [found, is_new] = index_.try_emplace({form, module, name}, trace_.globals.size());
    if (is_new) {
      if (trace_.globals.size() >= kMaxGlobals) throw Broken{"more names than are followed", true};
      NamedGlobal global;
      global.form = form;
      global.module = std::move(module);
      global.name = std::move(name);
      global.offset = opcode_at_;
      trace_.globals.push_back(std::move(global));
      pushes_.push_back(0);
      consumed_.push_back(0);
    }
    return found->second;
  }

  Known global_named(const TraceCursor::Text& module, const TraceCursor::Text& name) {
    return global_of(NamedGlobal::Form::name, cursor_.beginning(module), cursor_.beginning(name));
  }

  Known global_of(NamedGlobal::Form form, std::string module, std::string name) {
    module.resize(std::min(module.size(), kMaxName));
    name.resize(std::min(name.size(), kMaxName));
    return {Known::global, add(form, std::move(module), std::move(name))};
  }

  // Pops an argument of STACK_GLOBAL. Every unpickler fails if it is certainly not a text.
  std::optional<std::string> pop_name() {
    const Known value = pop();
    if (value.kind == Known::text) return text_at(source_, value.what);
    if (value.is_never_called()) die();
    return std::nullopt;
  }

  void name_from_stack() {
    const std::optional<std::string> name = pop_name();
    const std::optional<std::string> module = pop_name();
    const auto form = module && name ? NamedGlobal::Form::name : NamedGlobal::Form::computed;
    push(global_of(form, module.value_or(""), name.value_or("")));
  }

  // Tuples.

  void push_tuple(size_t size) {
    const size_t begin = elements_.size();
    const size_t kept = std::min(size, stack_.size() - floor());
    elements_.insert(elements_.end(), stack_.end() - static_cast<std::ptrdiff_t>(kept),
                     stack_.end());
    stack_.resize(stack_.size() - kept);
    push({Known::tuple, uint64_t{begin} << 32 | kept});
  }
  std::span<const Known> elements(const Known& tuple) const {
    return std::span(elements_).subspan(tuple.what >> 32, static_cast<uint32_t>(tuple.what));
  }

  // Calls.

  void use(size_t global, Use what) { trace_.globals[global].uses |= what; }

  void call(const Known& callable, Use how) {
    size_t global = 0;
    switch (callable.kind) {
      case Known::global:
        global = callable.what;
        use(global, how);
        ++consumed_[global];
        break;
      case Known::result:
        global = callable.what;
        use(global, kResultCalled);
        break;
      case Known::persistent:
        global = add(NamedGlobal::Form::persistent, "", "");
        use(global, kCalled);
        break;
      default:
        if (callable.is_never_called()) die();
        return push({});
    }
    push({Known::result, global});
  }

  void reduce() {
    const Known tuple = pop();
    const Known callable = pop();
    if (callable.kind != Known::global || tuple.kind != Known::tuple) {
      return call(callable, kCalled);
    }
    if (is_getattr(global(callable)) && take_attribute(callable, elements(tuple))) return;
    call(callable, kCalled);
    if (is_in_copyreg(global(callable))) make_of_first(global(callable).name, tuple);
  }

  const NamedGlobal& global(const Known& value) const { return trace_.globals[value.what]; }

  static bool is_getattr(const NamedGlobal& global) {
    return global.form == NamedGlobal::Form::name && global.name == "getattr" &&
           (global.module == "builtins" || global.module == "__builtin__");
  }

  // Returns false unless the result is a constant attribute of a global.
  bool take_attribute(const Known& getattr, std::span<const Known> arguments) {
    if (arguments.size() != 2 || arguments[0].kind != Known::global ||
        arguments[1].kind != Known::text) {
      return false;
    }
    const NamedGlobal& owner = global(arguments[0]);
    const std::optional<std::string> name = text_at(source_, arguments[1].what);
    if (!name || owner.form != NamedGlobal::Form::name) return false;
    auto& attributes = trace_.globals[getattr.what].attributes;
    const NamedGlobal::Attribute attribute{owner.module, owner.name, *name};
    if (std::find(attributes.begin(), attributes.end(), attribute) == attributes.end()) {
      if (attributes.size() >= kMaxAttributes) return false;
      attributes.push_back(attribute);
    }
    ++consumed_[getattr.what];
    push({Known::result, getattr.what});
    return true;
  }

  static bool is_in_copyreg(const NamedGlobal& global) {
    return global.form == NamedGlobal::Form::name &&
           (global.module == "copyreg" || global.module == "copy_reg");
  }

  // Pushes the object that copyreg's `function` makes, in place of its result.
  void make_of_first(std::string_view function, const Known& tuple) {
    const std::span<const Known> arguments = elements(tuple);
    if (arguments.empty() || arguments[0].kind != Known::global) return;
    if (function != "__newobj__" && function != "__newobj_ex__" && function != "_reconstructor") {
      return;
    }
    pop();
    call(arguments[0], kMade);
    // This use of the class is counted. The element is cleared, so a later call of the same tuple
    // is not.
    elements_[tuple.what >> 32] = {};
  }

  void instance_above_mark() {
    const Known named_class = above_mark() > 0 ? stack_[floor()] : Known{};
    drop_mark();
    call(named_class, kCalled);
  }

  // Python imports the class before it misses the mark and fails.
  void instance_of(const Known& named_class) {
    if (marks_.empty()) {
      push(named_class);
      return die();
    }
    drop_mark();
    ++pushes_[named_class.what];
    call(named_class, kCalled);
  }

  // Records that the value on top is changed.
  void fill(Use how) {
    const Known target = top();
    if (target.kind == Known::global) use(target.what, kChanged);
    if (target.kind == Known::result) use(target.what, how);
  }

  // Memo.

  // Python accepts more spellings of numbers than picklers write. The others are unknown here.
  std::optional<uint64_t> memo_index(const TraceCursor::Text& text) {
    const std::string line = cursor_.beginning(text);
    uint64_t index = 0;
    const auto [end, error] = std::from_chars(line.data(), line.data() + line.size(), index);
    if (error != std::errc() || end != line.data() + line.size()) return std::nullopt;
    return index;
  }
  void put(std::optional<uint64_t> index) {
    const Known value = top();
    if (!index) return;
    if (*index > opcode_at_ && trace_.died == Trace::kNowhere && trace_.far_index == 0) {
      trace_.far_index = *index;
    }
    memo_[*index] = value;
  }
  void get(std::optional<uint64_t> index) {
    if (!index) return push({});
    const auto found = memo_.find(*index);
    if (found == memo_.end()) die();
    push(found == memo_.end() ? Known{} : found->second);
  }

  void step(uint8_t opcode);

  const ByteSource& source_;
  TraceCursor cursor_;
  uint64_t opcode_at_ = 0;
  Trace trace_;
  // For each global: how often it was pushed, and how often a call popped it. The rest went into
  // values.
  std::vector<uint64_t> pushes_;
  std::vector<uint64_t> consumed_;
  std::map<std::tuple<NamedGlobal::Form, std::string, std::string>, size_t> index_;
  std::vector<Known> stack_;
  std::vector<Known> elements_;  // of all tuples
  std::vector<size_t> marks_;
  KeyedMap<uint64_t, Known> memo_;
};

void Tracer::step(uint8_t opcode) {
  const auto argument = read_argument(cursor_, opcode);
  switch (opcode) {
    case kProto:
    case kFrame:
    case kReadOnlyBuffer:
      return;

    case kString:
    case kBinString:
    case kShortBinString:
    case kUnicode:
    case kBinUnicode:
    case kShortBinUnicode:
    case kBinUnicode8:
      return push({Known::text, opcode_at_});

    case kNone:
    case kNewTrue:
    case kNewFalse:
    case kInt:
    case kBinInt:
    case kBinInt1:
    case kBinInt2:
    case kLong:
    case kLong1:
    case kLong4:
    case kFloat:
    case kBinFloat:
    case kBinBytes:
    case kShortBinBytes:
    case kBinBytes8:
    case kByteArray8:
    case kNextBuffer:
      return push({Known::plain, 0});

    case kEmptyTuple:
      return push_tuple(0);
    case kTuple1:
      return push_tuple(1);
    case kTuple2:
      return push_tuple(2);
    case kTuple3:
      return push_tuple(3);
    case kTuple: {
      const size_t size = above_mark();
      if (marks_.empty()) die();
      push_tuple(size);
      // Removes the mark below the tuple.
      if (!marks_.empty()) marks_.pop_back();
      return;
    }

    case kEmptyList:
    case kEmptyDict:
    case kEmptySet:
      return push({Known::container, 0});
    case kList:
    case kDict:
    case kFrozenSet:
      drop_mark();
      return push({Known::container, 0});
    case kAppend:
      pop();
      return fill(kFilled);
    case kSetItem:
      pop(2);
      return fill(kFilled);
    case kAppends:
    case kAddItems:
    case kSetItems:
      drop_mark();
      return fill(kFilled);

    case kGlobal:
      return push(global_named(argument.text, argument.second_text));
    case kStackGlobal:
      return name_from_stack();
    case kExt1:
    case kExt2:
    case kExt4: {
      // copyreg's codes have 31 bits.
      const auto code = static_cast<uint32_t>(argument.number);
      return push(global_of(NamedGlobal::Form::extension, "", std::to_string(code)));
    }
    case kReduce:
      return reduce();
    case kNewObj: {
      pop();
      return call(pop(), kMade);
    }
    case kNewObjEx:
      pop(2);
      return call(pop(), kMade);
    case kInst:
      return instance_of(global_named(argument.text, argument.second_text));
    case kObj:
      return instance_above_mark();
    case kBuild:
      pop();
      return fill(kBuilt);
    case kBinPersId:
      pop();
      [[fallthrough]];
    case kPersId:
      return push({Known::persistent, 0});

    case kMark:
      marks_.push_back(stack_.size());
      if (marks_.size() > kMaxValues) throw Broken{"more values than are followed", true};
      return;
    case kPop:
      if (!marks_.empty() && marks_.back() == stack_.size()) {
        marks_.pop_back();
      } else {
        pop();
      }
      return;
    case kPopMark:
      return drop_mark();
    case kDup:
      return push(top());
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

    default:
      throw Broken{not_an_opcode(opcode)};
  }
}

}  // namespace

std::vector<std::string> to_strings(unsigned uses) {
  static constexpr std::pair<Use, const char*> kNames[] = {{kNamed, "named"},
                                                           {kCalled, "called"},
                                                           {kMade, "made"},
                                                           {kBuilt, "built"},
                                                           {kFilled, "filled"},
                                                           {kChanged, "changed"},
                                                           {kResultCalled, "its result called"}};
  std::vector<std::string> names;
  for (const auto& [use, name] : kNames) {
    if ((uses & use) != 0) names.emplace_back(name);
  }
  return names;
}

Trace trace(const ByteSource& source) {
  return Tracer(source).run();
}

uint64_t length(const ByteSource& source, uint64_t base) {
  TraceCursor cursor(source, 0, kWindow);
  uint64_t at = 0;
  try {
    for (;;) {
      at = cursor.at();
      const auto opcode = cursor.read<uint8_t>();
      if (opcode == kStop) return cursor.at();
      if (kOpcodes[opcode].name == nullptr) throw Broken{not_an_opcode(opcode)};
      read_argument(cursor, opcode);
    }
  } catch (const Broken& broken) {
    throw CorruptError({.offset = base + at}, broken.why);
  }
}

}  // namespace dsckpt::pickle
