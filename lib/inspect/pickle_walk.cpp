#include "inspect/pickle_walk.h"

#include <array>
#include <charconv>
#include <vector>

#include "dsckpt/error.h"

namespace dsckpt {

using pickle::Kind;
using pickle::ObjectNode;
using pickle::Value;

bool is_container(const Value& value) {
  switch (value.kind()) {
    case Kind::list:
    case Kind::dict:
    case Kind::set:
    case Kind::frozen_set:
    case Kind::object:
    case Kind::persistent:
      return true;
    case Kind::tuple:
      return !value.as_sequence().empty();
    default:
      return false;
  }
}

SharedContainers::SharedContainers(const Value& root) {
  std::unordered_map<const void*, bool> seen;  // true if it was seen twice
  std::vector<Value> open{root};
  const auto add = [&](const Value& value) {
    if (is_container(value)) open.push_back(value);
  };
  const auto add_items = [&](const pickle::DictNode& dict) {
    for (const auto& [key, value] : dict.items) {
      add(key);
      add(value);
    }
  };
  while (!open.empty()) {
    const Value value = open.back();
    open.pop_back();
    if (!is_container(value)) continue;
    const auto [found, is_new] = seen.try_emplace(value.identity(), false);
    if (!is_new) {
      found->second = true;
      continue;
    }
    if (value.is(Kind::persistent)) {
      add(value.persistent_id());
    } else if (value.is(Kind::dict)) {
      add_items(value.as_dict());
    } else if (value.is(Kind::object)) {
      const ObjectNode& object = value.as_object();
      for (const Value& part : {object.callable, object.arguments, object.keywords, object.state}) {
        add(part);
      }
      for (const Value& item : object.items) add(item);
      add_items(object.mapping);
    } else {
      for (const Value& item : value.as_sequence()) add(item);
    }
  }
  for (const auto& [identity, is_shared] : seen) {
    if (is_shared) numbers_.emplace(identity, 0);
  }
}

SharedContainers::Number SharedContainers::meet(const Value& container) {
  const auto found = numbers_.find(container.identity());
  if (found == numbers_.end()) return {};
  if (found->second != 0) return {found->second, false};
  found->second = ++last_;
  return {last_, true};
}

std::optional<TensorInfo> tensor_of(const TorchArchive* archive, const Value& value) {
  if (archive == nullptr || !TorchArchive::is_tensor(value)) return std::nullopt;
  const ObjectNode& object = value.as_object();
  // The tensor's own fields lack these.
  if (object.has_state || !object.items.empty() || !object.mapping.items.empty()) {
    return std::nullopt;
  }
  try {
    return archive->info(value);
  } catch (const Error&) {
    return std::nullopt;
  }
}

std::string hex(std::string_view bytes) {
  constexpr std::string_view kDigits = "0123456789abcdef";
  std::string out;
  out.reserve(2 * bytes.size());
  for (const char c : bytes) {
    const auto byte = static_cast<unsigned char>(c);
    out += kDigits[byte >> 4];
    out += kDigits[byte & 15];
  }
  return out;
}

std::string hex_integer(std::string_view twos_complement) {
  std::string magnitude(twos_complement.rbegin(), twos_complement.rend());
  const bool negative =
      !magnitude.empty() && (static_cast<unsigned char>(magnitude.front()) & 0x80) != 0;
  if (negative) {
    unsigned carry = 1;
    for (auto at = magnitude.rbegin(); at != magnitude.rend(); ++at) {
      carry += static_cast<unsigned char>(~static_cast<unsigned char>(*at));
      *at = static_cast<char>(carry);
      carry >>= 8;
    }
  }
  const std::string digits = hex(magnitude);
  const size_t first = std::min(digits.find_first_not_of('0'), digits.size() - 1);
  return (negative ? "-0x" : "0x") + digits.substr(first);
}

std::string shortest_real(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value < 0 ? "-inf" : "inf";
  std::array<char, 32> text{};
  const auto [end, error] = std::to_chars(text.data(), text.data() + text.size(), value);
  static_cast<void>(error);
  std::string out(text.data(), end);
  if (out.find_first_of(".e") == std::string::npos) out += ".0";
  return out;
}

std::string_view name_of(ObjectNode::Made made) {
  switch (made) {
    case ObjectNode::Made::reduce:
      return "reduce";
    case ObjectNode::Made::newobj:
      return "newobj";
    case ObjectNode::Made::newobj_ex:
      return "newobj_ex";
    case ObjectNode::Made::inst:
      break;
  }
  return "inst";
}

}  // namespace dsckpt
