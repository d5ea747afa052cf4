#include "pickle/trace.h"

#include <charconv>
#include <map>
#include <string_view>
#include <unordered_map>
#include <utility>

#include "base/bytes.h"
#include "base/error.h"
#include "base/keyed_hash.h"
#include "pickle/nodes.h"
#include "pickle/opcodes.h"

namespace dsckpt::pickle {
namespace {

// No real name is longer.
constexpr size_t kMaxName = 1000;
// Of stack and memo: some hundred megabytes.
constexpr size_t kMaxValues = size_t{1} << 23;
constexpr size_t kMaxGlobals = size_t{1} << 16;
constexpr uint64_t kWindow = uint64_t{64} << 10;
constexpr uint64_t kSmallWindow = 4096;

// Ends a trace.
struct Broken {
  std::string why;
};

// A cursor over a source that holds one window of it.
class Cursor {
 public:
  Cursor(const ByteSource& source, uint64_t at, uint64_t window)
      : source_(source), at_(at), window_size_(window) {}

  uint64_t at() const { return at_; }

  uint8_t byte() {
    if (at_ < begin_ || at_ - begin_ >= window_.size()) {
      window_ = source_.read(at_, window_size_);
      begin_ = at_;
      if (window_.empty()) throw Broken{"the bytes end inside the pickle"};
    }
    return static_cast<uint8_t>(window_[static_cast<size_t>(at_++ - begin_)]);
  }

  uint64_t integer(size_t bytes) {
    uint64_t value = 0;
    for (size_t i = 0; i < bytes; ++i) value |= uint64_t{byte()} << 8 * i;
    return value;
  }

  void skip(uint64_t count) {
    if (count > source_.size() - at_) throw Broken{"the bytes end inside the pickle"};
    at_ += count;
  }

  // The first kMaxName bytes, and one more if there are more, of the next `count`.
  std::string text(uint64_t count) {
    std::string out;
    const uint64_t kept = std::min<uint64_t>(count, kMaxName + 1);
    while (out.size() < kept) out.push_back(static_cast<char>(byte()));
    skip(count - kept);
    return out;
  }

  // The same of the line that starts here. Python takes the end of the bytes for the end of a line.
  std::string line() {
    std::string out;
    while (at_ < source_.size()) {
      const char c = static_cast<char>(byte());
      if (c == '\n') break;
      if (out.size() <= kMaxName) out.push_back(c);
    }
    return out;
  }

 private:
  const ByteSource& source_;
  uint64_t at_;
  uint64_t window_size_;
  std::vector<std::byte> window_;
  uint64_t begin_ = 0;
};

// How the text of an opcode is stored.
enum class Text : uint8_t { none, counted1, counted4, counted8, quoted, raw_unicode };

Text text_of(uint8_t opcode) {
  switch (opcode) {
    case kShortBinString:
    case kShortBinUnicode:
      return Text::counted1;
    case kBinString:
    case kBinUnicode:
      return Text::counted4;
    case kBinUnicode8:
      return Text::counted8;
    case kString:
      return Text::quoted;
    case kUnicode:
      return Text::raw_unicode;
    default:
      return Text::none;
  }
}

// The text that starts at the cursor, behind its opcode; nullopt if it cannot be a name.
std::optional<std::string> read_text(Cursor& cursor, Text form) {
  std::string text;
  switch (form) {
    case Text::none:
      return std::nullopt;
    case Text::counted1:
      text = cursor.text(cursor.integer(1));
      break;
    case Text::counted4:
      text = cursor.text(cursor.integer(4));
      break;
    case Text::counted8:
      text = cursor.text(cursor.integer(8));
      break;
    case Text::quoted:
    case Text::raw_unicode:
      try {
        text = form == Text::quoted ? unquote(cursor.line()) : decode_raw_unicode(cursor.line());
      } catch (const CorruptError&) {
        return std::nullopt;
      }
      break;
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
        const uint8_t opcode = cursor_.byte();
        if (opcode == kStop) break;
        step(opcode);
        if (stack_.size() + memo_.size() > kMaxValues)
          throw Broken{"more values than are followed"};
      }
      trace_.end = cursor_.at();
    } catch (const Broken& broken) {
      trace_.end = opcode_at_;
      trace_.problem = broken.why;
    }
    for (size_t i = 0; i < trace_.globals.size(); ++i) {
      if (pushes_[i] > consumed_[i]) trace_.globals[i].uses |= kNamed;
    }
    return std::move(trace_);
  }

 private:
  // What is known of a value. `what` is the index of a global, or of a pair; of a text, where its
  // opcode stands.
  struct Known {
    enum Kind : uint8_t { other, text, global, result, pair, persistent } kind = other;
    uint64_t what = 0;
  };

  // Stack.

  size_t floor() const { return marks_.empty() ? 0 : marks_.back(); }
  void push(Known value) {
    if (value.kind == Known::global) ++pushes_[value.what];
    stack_.push_back(value);
  }
  // Python would stop at an empty stack.
  Known pop() {
    if (stack_.size() <= floor()) return {};
    const Known value = stack_.back();
    stack_.pop_back();
    return value;
  }
  void pop(size_t count) {
    while (count-- > 0) pop();
  }
  Known top() const { return stack_.size() > floor() ? stack_.back() : Known{}; }
  // Drops the values above the last mark, and it.
  void drop_mark() {
    stack_.resize(floor());
    if (!marks_.empty()) marks_.pop_back();
  }
  size_t above_mark() const { return stack_.size() - floor(); }

  // Names.

  size_t add(NamedGlobal::Form form, std::string module, std::string name) {
    const auto [found, is_new] = index_.try_emplace({form, module, name}, trace_.globals.size());
    if (is_new) {
      if (trace_.globals.size() >= kMaxGlobals) throw Broken{"more names than are followed"};
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

  Known global_of(NamedGlobal::Form form, std::string module, std::string name) {
    module.resize(std::min(module.size(), kMaxName));
    name.resize(std::min(name.size(), kMaxName));
    return {Known::global, add(form, std::move(module), std::move(name))};
  }

  std::optional<std::string> text_at(const Known& value) const {
    if (value.kind != Known::text) return std::nullopt;
    Cursor cursor(source_, value.what, kSmallWindow);
    const uint8_t opcode = cursor.byte();
    return read_text(cursor, text_of(opcode));
  }

  void name_from_lines() {
    const std::string module = cursor_.line();
    const std::string name = cursor_.line();
    push(global_of(NamedGlobal::Form::name, module, name));
  }

  void name_from_stack() {
    const std::optional<std::string> name = text_at(pop());
    const std::optional<std::string> module = text_at(pop());
    const auto form = module && name ? NamedGlobal::Form::name : NamedGlobal::Form::computed;
    push(global_of(form, module.value_or(""), name.value_or("")));
  }

  void extension(size_t bytes) {
    push(global_of(NamedGlobal::Form::extension, "", std::to_string(cursor_.integer(bytes))));
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
        return push({});
    }
    push({Known::result, global});
  }

  void reduce() {
    const Known arguments = pop();
    const Known callable = pop();
    if (callable.kind == Known::global && arguments.kind == Known::pair &&
        is_getattr(trace_.globals[callable.what])) {
      auto& attributes = trace_.globals[callable.what].attributes;
      const NamedGlobal::Attribute& attribute = pairs_[arguments.what];
      if (std::find(attributes.begin(), attributes.end(), attribute) == attributes.end()) {
        attributes.push_back(attribute);
      }
      ++consumed_[callable.what];
      push({Known::result, callable.what});
      return;
    }
    call(callable, kCalled);
  }

  static bool is_getattr(const NamedGlobal& global) {
    return global.form == NamedGlobal::Form::name && global.name == "getattr" &&
           (global.module == "builtins" || global.module == "__builtin__");
  }

  // A tuple of a global and a text is what getattr may be called with.
  void push_pair() {
    const Known second = pop();
    const Known first = pop();
    const std::optional<std::string> name =
        first.kind == Known::global ? text_at(second) : std::nullopt;
    if (!name || pairs_.size() >= kMaxGlobals) return push({});
    const NamedGlobal& owner = trace_.globals[first.what];
    if (owner.form != NamedGlobal::Form::name) return push({});
    pairs_.push_back({owner.module, owner.name, *name});
    push({Known::pair, pairs_.size() - 1});
  }

  void instance_above_mark() {
    const Known named_class = above_mark() > 0 ? stack_[floor()] : Known{};
    drop_mark();
    call(named_class, kCalled);
  }

  // Something is put into the value on top.
  void fill() {
    const Known target = top();
    if (target.kind == Known::global) use(target.what, kChanged);
  }

  void build() {
    pop();
    const Known target = top();
    if (target.kind == Known::result) use(target.what, kBuilt);
    fill();
  }

  // Memo.

  uint64_t decimal() {
    const std::string line = cursor_.line();
    uint64_t index = 0;
    const auto [end, error] = std::from_chars(line.data(), line.data() + line.size(), index);
    static_cast<void>(end);
    return error == std::errc() ? index : ~uint64_t{0};
  }
  void put(uint64_t index) { memo_[index] = top(); }
  void get(uint64_t index) {
    const auto found = memo_.find(index);
    push(found == memo_.end() ? Known{} : found->second);
  }

  void step(uint8_t opcode);

  const ByteSource& source_;
  Cursor cursor_;
  uint64_t opcode_at_ = 0;
  Trace trace_;
  // By global: how often it was put on the stack, and how often it was taken from there to be
  // called. What is left over was put into a value.
  std::vector<uint64_t> pushes_;
  std::vector<uint64_t> consumed_;
  std::map<std::tuple<NamedGlobal::Form, std::string, std::string>, size_t> index_;
  std::vector<NamedGlobal::Attribute> pairs_;
  std::vector<Known> stack_;
  std::vector<size_t> marks_;
  std::unordered_map<uint64_t, Known, KeyedHash> memo_;
};

void Tracer::step(uint8_t opcode) {
  if (const Text text = text_of(opcode); text != Text::none) {
    switch (text) {
      case Text::counted1:
        cursor_.skip(cursor_.integer(1));
        break;
      case Text::counted4:
        cursor_.skip(cursor_.integer(4));
        break;
      case Text::counted8:
        cursor_.skip(cursor_.integer(8));
        break;
      default:
        cursor_.line();
    }
    return push({Known::text, opcode_at_});
  }
  switch (opcode) {
    case kProto:
      return cursor_.skip(1);
    case kFrame:
      return cursor_.skip(8);

    case kNone:
    case kNewTrue:
    case kNewFalse:
    case kEmptyTuple:
    case kEmptyList:
    case kEmptyDict:
    case kEmptySet:
    case kNextBuffer:
      return push({});
    case kBinInt1:
      cursor_.skip(1);
      return push({});
    case kBinInt2:
      cursor_.skip(2);
      return push({});
    case kBinInt:
      cursor_.skip(4);
      return push({});
    case kBinFloat:
      cursor_.skip(8);
      return push({});
    case kLong1:
    case kShortBinBytes:
      cursor_.skip(cursor_.integer(1));
      return push({});
    case kLong4:
    case kBinBytes:
      cursor_.skip(cursor_.integer(4));
      return push({});
    case kBinBytes8:
    case kByteArray8:
      cursor_.skip(cursor_.integer(8));
      return push({});
    case kInt:
    case kLong:
    case kFloat:
      cursor_.line();
      return push({});
    case kReadOnlyBuffer:
      return;

    case kTuple2:
      return push_pair();
    case kTuple:
      if (above_mark() == 2) {
        push_pair();
        const Known pair = pop();
        drop_mark();
        return push(pair);
      }
      drop_mark();
      return push({});
    case kList:
    case kDict:
    case kFrozenSet:
      drop_mark();
      return push({});
    case kTuple1:
      pop();
      return push({});
    case kTuple3:
      pop(3);
      return push({});
    case kAppend:
      pop();
      return fill();
    case kSetItem:
      pop(2);
      return fill();
    case kAppends:
    case kAddItems:
    case kSetItems:
      drop_mark();
      return fill();

    case kGlobal:
      return name_from_lines();
    case kStackGlobal:
      return name_from_stack();
    case kExt1:
      return extension(1);
    case kExt2:
      return extension(2);
    case kExt4:
      return extension(4);
    case kReduce:
      return reduce();
    case kNewObj:
      pop();
      return call(pop(), kMade);
    case kNewObjEx:
      pop(2);
      return call(pop(), kMade);
    case kInst: {
      name_from_lines();
      const Known named_class = stack_.back();
      stack_.pop_back();
      drop_mark();
      return call(named_class, kCalled);
    }
    case kObj:
      return instance_above_mark();
    case kBuild:
      return build();
    case kPersId:
      cursor_.line();
      return push({Known::persistent, 0});
    case kBinPersId:
      pop();
      return push({Known::persistent, 0});

    case kMark:
      marks_.push_back(stack_.size());
      if (marks_.size() > kMaxValues) throw Broken{"more values than are followed"};
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
      return put(decimal());
    case kBinPut:
      return put(cursor_.integer(1));
    case kLongBinPut:
      return put(cursor_.integer(4));
    case kMemoize:
      return put(memo_.size());
    case kGet:
      return get(decimal());
    case kBinGet:
      return get(cursor_.integer(1));
    case kLongBinGet:
      return get(cursor_.integer(4));

    default: {
      char text[8];
      std::snprintf(text, sizeof text, "0x%02x", opcode);
      throw Broken{std::string(text) + " is not an opcode"};
    }
  }
}

}  // namespace

std::vector<std::string> to_strings(Use uses) {
  static constexpr std::pair<Use, const char*> kNames[] = {
      {kNamed, "named"}, {kCalled, "called"},   {kMade, "made"},
      {kBuilt, "built"}, {kChanged, "changed"}, {kResultCalled, "its result called"}};
  std::vector<std::string> names;
  for (const auto& [use, name] : kNames) {
    if ((uses & use) != 0) names.emplace_back(name);
  }
  return names;
}

Trace trace(const ByteSource& source) {
  return Tracer(source).run();
}

}  // namespace dsckpt::pickle
