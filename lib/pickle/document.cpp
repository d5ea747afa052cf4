#include "base/keyed_hash.h"
#include "pickle/nodes.h"
#include "pickle/pickle.h"

namespace dsckpt::pickle {
namespace {

// Dicts up to this size are searched item by item.
constexpr size_t kUnindexed = 8;

[[noreturn]] void wrong_kind(const Value& value, std::string_view expected) {
  throw CorruptError({}, describe(value) + " where " + std::string(expected) + " was expected");
}

bool equals(const Value& value, std::string_view key) {
  return value.is(Kind::string) && Access::as<TextNode>(value).text == key;
}
bool equals(const Value& value, int64_t key) {
  return value.is(Kind::integer) && value.as_int() == key;
}

uint32_t hash_of(std::string_view key) {
  return static_cast<uint32_t>(keyed_hash(key));
}
uint32_t hash_of(int64_t key) {
  return static_cast<uint32_t>(keyed_hash(static_cast<uint64_t>(key)));
}

// Returns whether a global makes a dict, even one that has no keys yet.
bool names_mapping(const Value& callable) {
  return callable.is_global("collections", "OrderedDict") ||
         callable.is_global("collections", "defaultdict") ||
         callable.is_global("collections", "Counter");
}

}  // namespace

std::string describe(const Value& value) {
  std::string text(to_string(value.kind()));
  Value named = value;
  // An object's callable can be an object as well.
  for (int depth = 0; named.is(Kind::object) && depth < 8; ++depth) {
    named = named.as_object().callable;
  }
  if (!named.is(Kind::global)) return text;
  const auto [module, name] = named.as_global();
  text += value.is(Kind::object) ? " of " : " ";
  return text.append(module).append(".").append(name);
}

std::string_view to_string(Kind kind) {
  switch (kind) {
    case Kind::none:
      return "None";
    case Kind::boolean:
      return "bool";
    case Kind::integer:
      return "int";
    case Kind::big_integer:
      return "big int";
    case Kind::real:
      return "float";
    case Kind::string:
      return "str";
    case Kind::bytes:
      return "bytes";
    case Kind::byte_array:
      return "bytearray";
    case Kind::tuple:
      return "tuple";
    case Kind::list:
      return "list";
    case Kind::dict:
      return "dict";
    case Kind::set:
      return "set";
    case Kind::frozen_set:
      return "frozenset";
    case Kind::global:
      return "global";
    case Kind::object:
      return "object";
    case Kind::persistent:
      return "persistent id";
  }
  return "unknown";
}

bool Value::as_bool() const {
  if (kind_ != Kind::boolean) wrong_kind(*this, "bool");
  return boolean_;
}

int64_t Value::as_int() const {
  if (kind_ == Kind::boolean) return boolean_ ? 1 : 0;
  if (kind_ != Kind::integer) wrong_kind(*this, "int");
  return integer_;
}

double Value::as_real() const {
  if (kind_ == Kind::integer) return static_cast<double>(integer_);
  if (kind_ != Kind::real) wrong_kind(*this, "float");
  return real_;
}

std::string_view Value::as_string() const {
  if (kind_ != Kind::string) wrong_kind(*this, "str");
  return Access::as<TextNode>(*this).text;
}

std::string_view Value::as_bytes() const {
  if (kind_ != Kind::bytes && kind_ != Kind::byte_array && kind_ != Kind::big_integer) {
    wrong_kind(*this, "bytes");
  }
  return Access::as<TextNode>(*this).text;
}

std::span<const Value> Value::as_sequence() const {
  switch (kind_) {
    case Kind::tuple:
      return Access::as<TupleNode>(*this).items;
    case Kind::list:
    case Kind::set:
    case Kind::frozen_set:
      return Access::as<ListNode>(*this).items;
    default:
      wrong_kind(*this, "tuple or list");
  }
}

bool Value::is_mapping() const {
  if (kind_ == Kind::dict) return true;
  if (kind_ != Kind::object) return false;
  const ObjectNode& object = as_object();
  return !object.mapping.items.empty() || names_mapping(object.callable);
}

const DictNode& Value::as_dict() const {
  if (!is_mapping()) wrong_kind(*this, "dict");
  return kind_ == Kind::dict ? Access::as<DictHolder>(*this).dict : as_object().mapping;
}

const ObjectNode& Value::as_object() const {
  if (kind_ != Kind::object) wrong_kind(*this, "object");
  return Access::as<ObjectHolder>(*this).object;
}

std::pair<std::string_view, std::string_view> Value::as_global() const {
  if (kind_ != Kind::global) wrong_kind(*this, "global");
  const auto& node = Access::as<GlobalNode>(*this);
  return {node.module, node.name};
}

bool Value::is_global(std::string_view module, std::string_view name) const {
  if (kind_ != Kind::global) return false;
  const auto& node = Access::as<GlobalNode>(*this);
  return node.module == module && node.name == name;
}

Value Value::persistent_id() const {
  if (kind_ != Kind::persistent) wrong_kind(*this, "persistent id");
  return Access::as<PersistentNode>(*this).id;
}

std::optional<Value> Value::find(std::string_view key) const {
  const Value* found = as_dict().find(key);
  if (found == nullptr) return std::nullopt;
  return *found;
}

Value Value::find_or_none(std::string_view key) const {
  return is_mapping() ? find(key).value_or(Value()) : Value();
}

std::span<const Value> Value::sequence_or_empty() const {
  return is(Kind::list) || is(Kind::tuple) ? as_sequence() : std::span<const Value>();
}

Value Value::at(std::string_view key) const {
  const Value* found = as_dict().find(key);
  if (found == nullptr) throw CorruptError({}, "key '" + std::string(key) + "' is missing");
  return *found;
}

template <typename Key>
size_t DictNode::index_of(const Key& key, uint32_t hash) const {
  if (slots_.empty()) {
    for (size_t i = 0; i < items.size(); ++i) {
      if (equals(items[i].first, key)) return i;
    }
    return items.size();
  }
  const size_t mask = slots_.size() - 1;
  for (size_t at = hash & mask; slots_[at].item != 0; at = (at + 1) & mask) {
    if (slots_[at].hash == hash && equals(items[slots_[at].item - 1].first, key)) {
      return slots_[at].item - 1;
    }
  }
  return items.size();
}

const Value* DictNode::find(std::string_view key) const {
  const size_t index = index_of(key, slots_.empty() ? 0 : hash_of(key));
  return index == items.size() ? nullptr : &items[index].second;
}

const Value* DictNode::find(int64_t key) const {
  const size_t index = index_of(key, slots_.empty() ? 0 : hash_of(key));
  return index == items.size() ? nullptr : &items[index].second;
}

void DictNode::insert(Value key, Value value) {
  const bool indexed = key.is(Kind::string) || key.is(Kind::integer);
  if (!indexed) {
    items.emplace_back(key, value);
    return;
  }
  if (items.size() >= kUnindexed && 3 * (items.size() + 1) > 2 * slots_.size()) grow();
  uint32_t hash = 0;
  size_t index = 0;
  if (key.is(Kind::string)) {
    const std::string_view text = key.as_string();
    hash = slots_.empty() ? 0 : hash_of(text);
    index = index_of(text, hash);
  } else {
    const int64_t number = key.as_int();
    hash = slots_.empty() ? 0 : hash_of(number);
    index = index_of(number, hash);
  }
  if (index < items.size()) {
    items[index].second = value;
    return;
  }
  items.emplace_back(key, value);
  if (slots_.empty()) return;
  const size_t mask = slots_.size() - 1;
  size_t at = hash & mask;
  while (slots_[at].item != 0) at = (at + 1) & mask;
  slots_[at] = {hash, static_cast<uint32_t>(items.size())};
}

void DictNode::grow() {
  if (items.size() >= UINT32_MAX / 4) throw CorruptError({}, "a dict has too many items");
  size_t size = 32;
  while (size < 3 * (items.size() + 1)) size *= 2;
  slots_.assign(size, {});
  for (size_t i = 0; i < items.size(); ++i) {
    const Value& key = items[i].first;
    if (!key.is(Kind::string) && !key.is(Kind::integer)) continue;
    const uint32_t hash = key.is(Kind::string) ? hash_of(key.as_string()) : hash_of(key.as_int());
    size_t at = hash & (size - 1);
    while (slots_[at].item != 0) at = (at + 1) & (size - 1);
    slots_[at] = {hash, static_cast<uint32_t>(i + 1)};
  }
}

Document::Document() : store_(std::make_unique<Store>()) {}
Document::~Document() = default;
Document::Document(Document&&) noexcept = default;
Document& Document::operator=(Document&&) noexcept = default;

Value Document::boolean(bool value) {
  return Access::make(value);
}
Value Document::integer(int64_t value) {
  return Access::make(value);
}
Value Document::real(double value) {
  return Access::make(value);
}

Value Document::big_integer(std::string_view twos_complement) {
  const std::string_view number = shortest(twos_complement);
  if (number.size() > sizeof(int64_t)) return store_->text(Kind::big_integer, number);
  const bool negative = !number.empty() && (static_cast<unsigned char>(number.back()) & 0x80) != 0;
  uint64_t value = negative ? ~uint64_t{0} : 0;
  for (size_t i = number.size(); i-- > 0;) {
    value = value << 8 | static_cast<unsigned char>(number[i]);
  }
  return integer(static_cast<int64_t>(value));
}

Value Document::string(std::string_view text) {
  return store_->text(Kind::string, text);
}

Value Document::intern(std::string_view text) {
  if (const auto found = store_->interned.find(text); found != store_->interned.end()) {
    return found->second;
  }
  const Value value = string(text);
  store_->interned.emplace(value.as_string(), value);
  return value;
}

Value Document::bytes(std::string_view data) {
  return store_->text(Kind::bytes, data);
}
Value Document::byte_array(std::string_view data) {
  return store_->text(Kind::byte_array, data);
}

Value Document::tuple(std::vector<Value> items) {
  return store_->tuple(items);
}

Value Document::list(std::vector<Value> items) {
  ListNode& node = store_->list(Kind::list);
  node.items = std::move(items);
  return Access::make(node);
}

Value Document::dict() {
  return Access::make(store_->dicts.emplace_back());
}

Value Document::set(std::vector<Value> items) {
  ListNode& node = store_->list(Kind::set);
  node.items = std::move(items);
  return Access::make(node);
}

Value Document::frozen_set(std::vector<Value> items) {
  ListNode& node = store_->list(Kind::frozen_set);
  node.items = std::move(items);
  return Access::make(node);
}

Value Document::global(std::string_view module, std::string_view name) {
  const std::string key = std::string(module) + "\n" + std::string(name);
  if (const auto found = store_->global_names.find(key); found != store_->global_names.end()) {
    return found->second;
  }
  const Value value = Access::make(
      store_->globals.emplace_back(store_->arena.copy(module), store_->arena.copy(name), false));
  store_->global_names.emplace(key, value);
  globals_.push_back(std::string(module) + "." + std::string(name));
  return value;
}

Value Document::object(ObjectNode::Made made, Value callable, Value arguments) {
  if (!arguments.is(Kind::tuple)) wrong_kind(arguments, "a tuple of arguments");
  ObjectHolder& node = store_->objects.emplace_back();
  node.object.made = made;
  node.object.callable = callable;
  node.object.arguments = arguments;
  return Access::make(node);
}

Value Document::persistent(Value id) {
  return Access::make(store_->persistents.emplace_back(id));
}

void Document::append(const Value& list_or_object, Value item) {
  switch (list_or_object.kind()) {
    case Kind::list:
    case Kind::set:
      Access::as<ListNode>(list_or_object).items.push_back(item);
      return;
    case Kind::object:
      Access::as<ObjectHolder>(list_or_object).object.items.push_back(item);
      return;
    default:
      wrong_kind(list_or_object, "list");
  }
}

void Document::set_item(const Value& dict_or_object, Value key, Value value) {
  switch (dict_or_object.kind()) {
    case Kind::dict:
      Access::insert(Access::as<DictHolder>(dict_or_object).dict, key, value);
      return;
    case Kind::object:
      Access::insert(Access::as<ObjectHolder>(dict_or_object).object.mapping, key, value);
      return;
    default:
      wrong_kind(dict_or_object, "dict");
  }
}

void Document::set_state(const Value& object, Value state) {
  if (!object.is(Kind::object)) wrong_kind(object, "object");
  ObjectNode& node = Access::as<ObjectHolder>(object).object;
  node.has_state = true;
  node.state = state;
}

std::string_view shortest(std::string_view number) {
  while (!number.empty()) {
    const auto last = static_cast<unsigned char>(number.back());
    const bool negative_rest =
        number.size() > 1 && (static_cast<unsigned char>(number[number.size() - 2]) & 0x80) != 0;
    if (last != (negative_rest ? 0xff : 0x00)) break;
    number.remove_suffix(1);
  }
  return number;
}

bool is_ascii(std::string_view text) {
  size_t i = 0;
  for (; i + 8 <= text.size(); i += 8) {
    uint64_t word = 0;
    std::memcpy(&word, text.data() + i, 8);
    if ((word & 0x8080808080808080u) != 0) return false;
  }
  for (; i < text.size(); ++i) {
    if (static_cast<unsigned char>(text[i]) >= 0x80) return false;
  }
  return true;
}

bool is_utf8(std::string_view text) {
  if (is_ascii(text)) return true;
  for (size_t i = 0; i < text.size();) {
    const auto lead = static_cast<unsigned char>(text[i++]);
    if (lead < 0x80) continue;
    const size_t more = lead >= 0xf0 ? 3 : lead >= 0xe0 ? 2 : 1;
    if (lead < 0xc2 || lead > 0xf4 || text.size() - i < more) return false;
    uint32_t code = lead & (0x3fu >> more);
    for (size_t k = 0; k < more; ++k) {
      const auto next = static_cast<unsigned char>(text[i++]);
      if ((next & 0xc0) != 0x80) return false;
      code = code << 6 | (next & 0x3fu);
    }
    if ((more == 2 && code < 0x800) || (more == 3 && (code < 0x10000 || code > 0x10ffff))) {
      return false;
    }
  }
  return true;
}

void append_utf8(std::string& out, uint32_t code_point) {
  const auto put = [&](uint32_t byte) { out.push_back(static_cast<char>(byte)); };
  if (code_point < 0x80) {
    put(code_point);
  } else if (code_point < 0x800) {
    put(0xc0 | code_point >> 6);
    put(0x80 | (code_point & 0x3f));
  } else if (code_point < 0x10000) {
    put(0xe0 | code_point >> 12);
    put(0x80 | (code_point >> 6 & 0x3f));
    put(0x80 | (code_point & 0x3f));
  } else {
    put(0xf0 | code_point >> 18);
    put(0x80 | (code_point >> 12 & 0x3f));
    put(0x80 | (code_point >> 6 & 0x3f));
    put(0x80 | (code_point & 0x3f));
  }
}

}  // namespace dsckpt::pickle
