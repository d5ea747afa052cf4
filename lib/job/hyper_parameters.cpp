#include "job/hyper_parameters.h"

#include <algorithm>
#include <functional>
#include <optional>
#include <string_view>
#include <utility>

#include "base/text.h"
#include "deepspeed/keys.h"
#include "dsckpt/error.h"

namespace dsckpt {
using pickle::Document;
using pickle::Kind;
using pickle::Value;
namespace {

constexpr std::string_view kDecoupled = "decoupled_weight_decay";
constexpr uint64_t kMostBytes = uint64_t{128} << 20;

using Maker = std::function<Value(TorchArchiveWriter&)>;

Maker always(Value value) {
  return [value](TorchArchiveWriter&) { return value; };
}

// Returns `value` in the form of torch's optimizer, or nullptr unless it is plain data.
Maker option_of(const TorchArchive& archive, std::string_view key, const Value& value,
                PlainData& plain) {
  if (TorchArchive::is_tensor(value)) {
    const std::optional<double> number = archive.scalar(value);
    return number ? always(Document::real(*number)) : nullptr;
  }
  if (!plain.is_plain(value)) return nullptr;
  // DeepSpeed's optimizers keep the configuration's list.
  const bool is_list = key == "betas" && value.is(Kind::list);
  return [&archive, value, is_list](TorchArchiveWriter& writer) {
    const Value copy = writer.import(archive, value);
    if (!is_list) return copy;
    const auto betas = copy.as_sequence();
    return writer.document().tuple({betas.begin(), betas.end()});
  };
}

uint64_t bytes_of(const Maker& value) {
  TorchArchiveWriter writer;
  writer.document().set_root(value(writer));
  return std::move(writer).write().pickle.size();
}

// Returns the configuration's choice, or nullopt if it names no optimizer. In engine.py
// _configure_basic_optimizer Adam is AdamW unless adam_w_mode is false.
std::optional<bool> is_decoupled(const Checkpoint& checkpoint) {
  if (checkpoint.files().model.empty()) return std::nullopt;
  const Value root = checkpoint.files().model.front().archive->root();
  const Value optimizer = root.find_or_none(keys::kDsConfig).find_or_none("optimizer");
  const Value type = optimizer.find_or_none("type");
  if (!type.is(Kind::string)) return std::nullopt;
  std::string name(type.as_string());
  std::transform(name.begin(), name.end(), name.begin(), [](char c) {
    return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  });
  const Value mode = optimizer.find_or_none("params").find_or_none("adam_w_mode");
  return name != "adam" || !mode.is(Kind::boolean) || mode.as_bool();
}

std::optional<double> number(const TorchArchive& archive, const Value& value) {
  const bool is_number = value.is(Kind::real) || value.is(Kind::integer);
  return is_number || TorchArchive::is_tensor(value) ? archive.scalar(value) : std::nullopt;
}

// Returns the initial learning rate, which torch's schedulers need and DeepSpeed's do not save.
// With a schedule it is the configuration's, else the current one.
std::optional<double> first_rate(const Checkpoint& checkpoint, const ShardValue& settings) {
  if (!checkpoint.files().model.empty()) {
    const TorchArchive& archive = *checkpoint.files().model.front().archive;
    const Value config = archive.root().find_or_none(keys::kDsConfig);
    const Value optimizer = config.find_or_none("optimizer");
    const auto rate = number(archive, optimizer.find_or_none("params").find_or_none("lr"));
    if (rate && !archive.root().find_or_none(keys::kLrScheduler).is_none()) return rate;
  }
  return number(*settings.archive, settings.value.find_or_none("lr"));
}

}  // namespace

bool PlainData::is_plain(const Value& value) {
  seen_.clear();
  return walk(value);
}

bool PlainData::walk(const Value& value) {
  switch (value.kind()) {
    case Kind::none:
    case Kind::boolean:
    case Kind::integer:
    case Kind::big_integer:
    case Kind::real:
    case Kind::string:
    case Kind::bytes:
      return true;
    case Kind::tuple:
    case Kind::list:
    case Kind::dict:
      break;
    default:
      return false;
  }
  if (not_plain_.contains(value.identity())) return false;
  // Any number of values may share this one, so it is walked once.
  if (!seen_.insert(value.identity()).second || walk_all(value)) return true;
  not_plain_.insert(value.identity());
  return false;
}

bool PlainData::walk_all(const Value& container) {
  if (container.is(Kind::dict)) {
    const auto& items = container.as_dict().items;
    return std::all_of(items.begin(), items.end(),
                       [&](const auto& item) { return walk(item.first) && walk(item.second); });
  }
  const auto items = container.as_sequence();
  return std::all_of(items.begin(), items.end(), [&](const Value& item) { return walk(item); });
}

UnsupportedError unknown_groups(const Checkpoint& checkpoint, const std::string& hint) {
  const bool is_split = checkpoint.facts().model_parallel;
  return UnsupportedError({.file = checkpoint.tag_folder().string()},
                          std::string("does not show the optimizer's groups") +
                              (is_split ? ": the model is split over ranks" : ""))
      .with_hint(hint);
}

std::string groups_text(const std::vector<ParamGroup>& groups) {
  std::string params;
  for (size_t g = 0; g + 1 < groups.size(); ++g) {
    params += std::to_string(groups[g].params.size()) + (g + 2 == groups.size() ? " and " : ", ");
  }
  return counted(groups.size(), "group") + " of " + params +
         counted(groups.back().params.size(), "parameter");
}

GroupRates rates_of(const Checkpoint& checkpoint, const ParamGroup& group) {
  const ShardValue& settings = group.settings;
  if (settings.archive == nullptr || !settings.value.is_mapping()) return {};
  const auto own = number(*settings.archive, settings.value.find_or_none("initial_lr"));
  const auto first = own ? own : first_rate(checkpoint, settings);
  const auto now = number(*settings.archive, settings.value.find_or_none("lr"));
  return {.first = first.value_or(0), .now = now.value_or(0)};
}

bool is_adam(const std::vector<ParamState>& states) {
  const auto has = [&](std::string_view key) {
    return std::any_of(states.begin(), states.end(),
                       [&](const ParamState& state) { return state.key == key; });
  };
  return has("exp_avg") && has("exp_avg_sq");
}

std::vector<HyperParameter> hyper_parameters(const Checkpoint& checkpoint, const ParamGroup& group,
                                             bool adam, PlainData& plain,
                                             const std::function<void(std::string)>& note) {
  std::vector<HyperParameter> options;
  const ShardValue& settings = group.settings;
  if (settings.archive == nullptr || !settings.value.is_mapping()) return options;
  uint64_t bytes = 0;  // options can share their parts
  for (const auto& [key, value] : settings.value.as_dict().items) {
    if (!key.is(Kind::string) || key.as_string() == "params") continue;
    std::string name(key.as_string());
    Maker option = option_of(*settings.archive, name, value, plain);
    if (option) {
      bytes += bytes_of(option);
      if (bytes > kMostBytes) {
        throw UnsupportedError({}, "the options of one of the optimizer's groups take more than " +
                                       human_bytes(kMostBytes));
      }
      options.push_back({std::move(name), std::move(option)});
    } else {
      note("'" + printable(name) + "' of the optimizer's groups is not plain data and is left out");
    }
  }
  const auto has = [&](std::string_view key) {
    return std::any_of(options.begin(), options.end(),
                       [&](const HyperParameter& option) { return option.key == key; });
  };
  const auto add = [&](std::string_view key, Value value) {
    if (!has(key)) options.push_back({std::string(key), always(value)});
  };
  if (const auto rate = first_rate(checkpoint, settings)) {
    add("initial_lr", Document::real(*rate));
  }
  if (adam) {
    add("amsgrad", Document::boolean(false));
    const std::optional<bool> decoupled = is_decoupled(checkpoint);
    if (!decoupled && !has(kDecoupled)) {
      note("'" + std::string(kDecoupled) +
           "' is true, as for AdamW: the files do not show whether it was true in this run");
    }
    add(kDecoupled, Document::boolean(decoupled.value_or(true)));
    const Value corrected = settings.value.find_or_none("bias_correction");
    if (corrected.is(Kind::boolean) && !corrected.as_bool()) {
      note("this run's Adam did not correct its moments' bias; torch's always does");
    }
  }
  add("maximize", Document::boolean(false));
  add("foreach", {});
  add("capturable", Document::boolean(false));
  add("differentiable", Document::boolean(false));
  add("fused", {});
  return options;
}

}  // namespace dsckpt
