#include "checkpoint/made_values.h"

#include <string_view>
#include <utility>

#include "deepspeed/keys.h"
#include "deepspeed/release.h"

namespace dsckpt {

using pickle::Document;
using pickle::Kind;
using pickle::Value;

Value buffer_names(Document& document, const std::vector<Param>& params) {
  std::vector<Value> names;
  for (const Param& param : params) {
    if (param.kind == ParamKind::buffer) names.push_back(document.intern(param.name));
  }
  return document.list(std::move(names));
}

void set_counters(Document& document, Value dict, int64_t global_steps) {
  const auto set = [&](std::string_view key, Value value) {
    document.set_item(dict, document.intern(key), value);
  };
  for (const std::string_view key : {keys::kDataSampler, keys::kRandomLtd}) set(key, {});
  set(keys::kSkippedSteps, Document::integer(0));
  set(keys::kGlobalSteps, Document::integer(global_steps));
  set(keys::kGlobalSamples, Document::integer(0));
  for (const std::string_view key : {keys::kDpWorldSize, keys::kMpWorldSize}) {
    set(key, Document::integer(1));
  }
  set(keys::kDsConfig, {});
  set(keys::kDsVersion, document.string(kNewestKnown));
}

namespace {

constexpr int kSettingDepth = 4;
// In all: a pickle can refer to one list again and again.
constexpr size_t kSettingItems = 1024;

std::optional<Value> nested_copy(Document& document, const TorchArchive& archive,
                                 const Value& value, int depth, size_t& left) {
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
      if (depth == kSettingDepth || items.size() > left) return std::nullopt;
      left -= items.size();
      std::vector<Value> copies;
      for (const Value& item : items) {
        const auto copy = nested_copy(document, archive, item, depth + 1, left);
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
  size_t left = kSettingItems;
  return nested_copy(document, archive, value, 0, left);
}

}  // namespace dsckpt
