#include "checkpoint/settings.h"

#include <utility>
#include <vector>

namespace dsckpt {
namespace {

using pickle::Document;
using pickle::Kind;
using pickle::Value;

constexpr int kSettingDepth = 4;
constexpr size_t kSettingItems = 1024;

std::optional<Value> nested_copy(Document& document, const TorchArchive& archive,
                                 const Value& value, int depth) {
  switch (value.kind()) {
    case Kind::none:
    case Kind::boolean:
    case Kind::integer:
    case Kind::real:
      return value;
    case Kind::string:
      return document.string(value.as_string());
    case Kind::tuple:
    case Kind::list: {
      const auto items = value.as_sequence();
      if (depth == kSettingDepth || items.size() > kSettingItems) return std::nullopt;
      std::vector<Value> copies;
      for (const Value& item : items) {
        const auto copy = nested_copy(document, archive, item, depth + 1);
        if (!copy) return std::nullopt;
        copies.push_back(*copy);
      }
      return value.is(Kind::tuple) ? document.tuple(std::move(copies))
                                   : document.list(std::move(copies));
    }
    default:
      break;
  }
  if (!TorchArchive::is_tensor(value)) return std::nullopt;
  const std::optional<double> number = archive.scalar(value);
  return number ? std::optional(Document::real(*number)) : std::nullopt;
}

}  // namespace

std::optional<Value> copy_setting(Document& document, const TorchArchive& archive,
                                  const Value& value) {
  return nested_copy(document, archive, value, 0);
}

}  // namespace dsckpt
