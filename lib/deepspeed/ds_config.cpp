#include "deepspeed/ds_config.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <limits>
#include <span>
#include <unordered_set>
#include <utility>
#include <vector>

#include "base/bytes.h"
#include "base/error.h"
#include "io/input_file.h"

namespace dsckpt {
namespace fs = std::filesystem;
using nlohmann::ordered_json;
using pickle::Kind;
using pickle::Value;
namespace {

constexpr uint64_t kMaxFileBytes = uint64_t{16} << 20;
constexpr size_t kMaxDepth = 100;
// Values may be shared in a pickle, so that a short one can be endless as JSON.
constexpr size_t kMaxValues = 1'000'000;
constexpr std::string_view kAuto = "auto";

// Where a walk stands, for messages; lives as long as the call for that place.
struct Place {
  const Place* outer = nullptr;
  std::string_view key;
  std::optional<size_t> index = {};  // of a list, instead of a key
  size_t depth = 0;

  Place at(std::string_view name) const { return {this, name, {}, depth + 1}; }
  Place at(size_t i) const { return {this, {}, i, depth + 1}; }

  // "zero_optimization.stage", "params.betas[1]", or "ds_config" for all of it.
  std::string text() const {
    if (outer == nullptr) return "ds_config";
    const std::string before = outer->outer == nullptr ? "" : outer->text();
    if (index) return before + "[" + std::to_string(*index) + "]";
    return (before.empty() ? "" : before + ".") + std::string(key);
  }

  [[noreturn]] void unsupported(const std::string& message) const {
    throw UnsupportedError({.member = text()}, message);
  }
};

// float.__repr__, or Python's json for those that are no numbers.
std::string python_repr(double value) {
  if (std::isnan(value)) return "NaN";
  if (std::isinf(value)) return value > 0 ? "Infinity" : "-Infinity";
  std::array<char, 32> buffer;
  const auto print = [&](std::chars_format format) {
    const auto end = std::to_chars(buffer.data(), buffer.data() + buffer.size(), value, format).ptr;
    return std::string(buffer.data(), end);
  };
  const std::string scientific = print(std::chars_format::scientific);
  const int exponent = std::stoi(scientific.substr(scientific.find('e') + 1));
  if (exponent < -4 || exponent >= 16) return scientific;
  const std::string fixed = print(std::chars_format::fixed);
  return fixed.find('.') == fixed.npos ? fixed + ".0" : fixed;
}

class ToJson {
 public:
  ordered_json convert(const Value& value, const Place& place) {
    if (place.depth > kMaxDepth) place.unsupported("is nested too deeply for a configuration");
    if (++values_ > kMaxValues) place.unsupported("there are too many values for a configuration");
    switch (value.kind()) {
      case Kind::none:
        return nullptr;
      case Kind::boolean:
        return value.as_bool();
      case Kind::integer:
        return value.as_int();
      case Kind::real:
        return value.as_real();
      case Kind::string:
        return std::string(value.as_string());
      case Kind::tuple:
      case Kind::list:
        return list(value, place);
      case Kind::dict:
        return object(value, place);
      case Kind::big_integer:
        place.unsupported("is an integer beyond 64 bits");
      default:
        // OrderedDict and its like.
        if (value.is_mapping()) return object(value, place);
        place.unsupported("is " + pickle::describe(value) + ", which JSON cannot hold");
    }
  }

 private:
  ordered_json list(const Value& value, const Place& place) {
    ordered_json result = ordered_json::array();
    for (const Value& item : value.as_sequence()) {
      result.push_back(convert(item, place.at(result.size())));
    }
    return result;
  }

  ordered_json object(const Value& value, const Place& place) {
    ordered_json result = ordered_json::object();
    auto& members = result.get_ref<ordered_json::object_t&>();
    std::unordered_set<std::string> names;
    for (const auto& [key, item] : value.as_dict().items) {
      const std::string name = key_text(key, place);
      if (!names.insert(name).second) place.at(name).unsupported("two keys become this one");
      // Not emplace(), which looks at all members.
      members.emplace_back(name, convert(item, place.at(name)));
    }
    return result;
  }

  static std::string key_text(const Value& key, const Place& place) {
    switch (key.kind()) {
      case Kind::string:
        return std::string(key.as_string());
      case Kind::none:
        return "null";
      case Kind::boolean:
        return key.as_bool() ? "true" : "false";
      case Kind::integer:
        return std::to_string(key.as_int());
      case Kind::real:
        return python_repr(key.as_real());
      default:
        place.unsupported("has a key that is " + pickle::describe(key));
    }
  }

  size_t values_ = 0;
};

Value to_pickle(pickle::Document& document, const ordered_json& json, const Place& place) {
  if (place.depth > kMaxDepth) place.unsupported("is nested too deeply for a configuration");
  switch (json.type()) {
    case ordered_json::value_t::null:
      return pickle::Document::none();
    case ordered_json::value_t::boolean:
      return pickle::Document::boolean(json.get<bool>());
    case ordered_json::value_t::number_integer:
      return pickle::Document::integer(json.get<int64_t>());
    case ordered_json::value_t::number_unsigned: {
      const uint64_t number = json.get<uint64_t>();
      if (number <= static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) {
        return pickle::Document::integer(static_cast<int64_t>(number));
      }
      std::string bytes;
      for (int shift = 0; shift < 64; shift += 8) {
        bytes.push_back(static_cast<char>(static_cast<unsigned char>(number >> shift)));
      }
      return document.big_integer(bytes + '\0');
    }
    case ordered_json::value_t::number_float:
      return pickle::Document::real(json.get<double>());
    case ordered_json::value_t::string:
      return document.string(json.get_ref<const std::string&>());
    case ordered_json::value_t::array: {
      std::vector<Value> items;
      for (const ordered_json& item : json) {
        items.push_back(to_pickle(document, item, place.at(items.size())));
      }
      return document.list(std::move(items));
    }
    case ordered_json::value_t::object: {
      const Value dict = document.dict();
      for (const auto& [key, item] : json.get_ref<const ordered_json::object_t&>()) {
        document.set_item(dict, document.intern(key), to_pickle(document, item, place.at(key)));
      }
      return dict;
    }
    case ordered_json::value_t::binary:
    case ordered_json::value_t::discarded:
      break;
  }
  place.unsupported("is not a value of JSON");
}

// Builds the value of a text, minding what nlohmann's own builder does not: keys that come twice
// and depth. It also looks at all members of an object for each new one.
class Builder : public nlohmann::json_sax<ordered_json> {
 public:
  bool null() override { return add(nullptr); }
  bool boolean(bool value) override { return add(value); }
  bool number_integer(number_integer_t value) override { return add(value); }
  bool number_unsigned(number_unsigned_t value) override { return add(value); }
  bool number_float(number_float_t value, const string_t&) override { return add(value); }
  bool string(string_t& value) override { return add(std::move(value)); }
  bool binary(binary_t&) override { return false; }
  bool start_object(size_t) override { return open(ordered_json::object()); }
  bool start_array(size_t) override { return open(ordered_json::array()); }
  bool end_object() override { return close(); }
  bool end_array() override { return close(); }

  bool key(string_t& name) override {
    Level& level = levels_.back();
    if (!level.names.insert(name).second) {
      std::string path;
      for (const Level& outer : std::span(levels_).first(levels_.size() - 1)) {
        path += outer.value.is_array() ? "[" + std::to_string(outer.value.size()) + "]"
                                       : (path.empty() ? "" : ".") + outer.key;
      }
      if (!path.empty()) path += ".";
      throw UsageError("the key " + path + name + " is there twice");
    }
    level.key = std::move(name);
    return true;
  }

  bool parse_error(size_t position, const std::string&,
                   const nlohmann::detail::exception& error) override {
    error_position_ = position;
    // "[json.exception.parse_error.101] parse error at line 1, column 2: syntax error ..."
    const std::string_view what = error.what();
    const size_t colon = what.find(": ");
    error_ = colon == what.npos ? what : what.substr(colon + 2);
    return false;
  }

  ordered_json take() { return std::move(root_); }
  size_t error_position() const { return error_position_; }
  const std::string& error() const { return error_; }

 private:
  struct Level {
    ordered_json value;
    std::string key = {};  // of the member that comes next
    std::unordered_set<std::string> names = {};
  };

  bool add(ordered_json value) {
    if (levels_.empty()) {
      root_ = std::move(value);
      return true;
    }
    Level& level = levels_.back();
    if (level.value.is_array()) {
      level.value.push_back(std::move(value));
    } else {
      level.value.get_ref<ordered_json::object_t&>().emplace_back(level.key, std::move(value));
    }
    return true;
  }

  bool open(ordered_json value) {
    if (levels_.size() >= kMaxDepth) throw UsageError("is nested too deeply for a configuration");
    levels_.push_back({std::move(value)});
    return true;
  }

  bool close() {
    ordered_json value = std::move(levels_.back().value);
    levels_.pop_back();
    return add(std::move(value));
  }

  std::vector<Level> levels_;
  ordered_json root_;
  size_t error_position_ = 0;
  std::string error_;
};

std::string line_and_column(std::string_view text, size_t position) {
  const std::string_view before = text.substr(0, position == 0 ? 0 : position - 1);
  const auto lines = std::count(before.begin(), before.end(), '\n');
  const size_t line_start = before.rfind('\n') + 1;  // npos + 1 is 0
  return "line " + std::to_string(lines + 1) + ", column " +
         std::to_string(before.size() - line_start + 1);
}

void check_writable(const ordered_json& json, const Place& place) {
  if (json.is_number_float() && !std::isfinite(json.get<double>())) {
    place.unsupported("is " + python_repr(json.get<double>()) + ", which JSON cannot hold");
  }
  if (json.is_array()) {
    for (size_t i = 0; i < json.size(); ++i) check_writable(json[i], place.at(i));
  } else if (json.is_object()) {
    for (const auto& [key, item] : json.get_ref<const ordered_json::object_t&>()) {
      check_writable(item, place.at(key));
    }
  } else if (json.is_string()) {
    try {
      static_cast<void>(json.dump());
    } catch (const ordered_json::exception&) {
      place.unsupported("is not UTF-8, so JSON cannot hold it");
    }
  }
}

bool is_absent(const ordered_json& value) {
  return value.is_null() || (value.is_string() && value.get_ref<const std::string&>() == kAuto);
}

// Part of a configuration, which may be absent.
class Section {
 public:
  explicit Section(const ordered_json* object, std::string name = {})
      : object_(object), name_(std::move(name)) {}

  Section section(const char* key) const {
    const ordered_json* value = find(key);
    if (value != nullptr && !value->is_object()) wrong(key, *value);
    return Section(value, path(key));
  }

  bool present() const { return object_ != nullptr; }
  bool has(const char* key) const { return find(key) != nullptr; }

  // The value, unless it is absent.
  const ordered_json* find(const char* key) const {
    if (object_ == nullptr) return nullptr;
    const auto it = object_->find(key);
    return it == object_->end() || is_absent(*it) ? nullptr : &*it;
  }

  // Each leaves `out` as it is if the value is absent.
  void read(const char* key, bool& out) const {
    const ordered_json* value = find(key);
    if (value == nullptr) return;
    if (value->is_boolean()) {
      out = value->get<bool>();
    } else if (value->is_number() && (*value == 0 || *value == 1)) {
      out = *value == 1;
    } else {
      wrong(key, *value);
    }
  }
  void read(const char* key, int64_t& out) const {
    const ordered_json* value = find(key);
    if (value == nullptr) return;
    if (value->is_number_unsigned()) {
      const uint64_t number = value->get<uint64_t>();
      if (number > static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) {
        refuse(key, "is " + value->dump() + ", which is too large");
      }
      out = static_cast<int64_t>(number);
    } else if (value->is_number_integer()) {
      out = value->get<int64_t>();
    } else if (value->is_number_float()) {
      const double number = value->get<double>();
      if (number != std::trunc(number) || std::abs(number) >= 0x1p63) {
        refuse(key, "is " + python_repr(number) + ", not a whole number");
      }
      out = static_cast<int64_t>(number);
    } else {
      wrong(key, *value);
    }
  }
  void read(const char* key, std::optional<int64_t>& out) const {
    if (!has(key)) return;
    read(key, out.emplace());
  }
  void read(const char* key, double& out) const {
    const ordered_json* value = find(key);
    if (value == nullptr) return;
    if (!value->is_number()) wrong(key, *value);
    out = value->get<double>();
  }
  void read(const char* key, std::string& out) const {
    const ordered_json* value = find(key);
    if (value == nullptr) return;
    if (!value->is_string()) wrong(key, *value);
    out = value->get<std::string>();
  }
  void read(const char* key, OffloadDevice& out) const {
    std::string name(to_string(out));
    read(key, name);
    for (const OffloadDevice device :
         {OffloadDevice::none, OffloadDevice::cpu, OffloadDevice::nvme}) {
      if (name == to_string(device)) {
        out = device;
        return;
      }
    }
    refuse(key, "is '" + name + "', which is none of none, cpu and nvme");
  }
  // config.py DtypeEnum
  void read(const char* key, std::optional<Precision>& out) const {
    if (!has(key)) return;
    std::string name;
    read(key, name);
    const auto is = [&](std::initializer_list<std::string_view> names) {
      return std::find(names.begin(), names.end(), name) != names.end();
    };
    if (is({"fp32", "float32", "float", "torch.float32"})) {
      out = Precision::fp32;
    } else if (is({"fp16", "float16", "half", "torch.float16"})) {
      out = Precision::fp16;
    } else if (is({"bf16", "bfloat16", "torch.bfloat16"})) {
      out = Precision::bf16;
    } else {
      refuse(key, "is '" + name + "', which is none of fp32, fp16 and bf16");
    }
  }

  [[noreturn]] void refuse(const char* key, const std::string& message) const {
    throw UsageError(path(key) + ": " + message);
  }

 private:
  std::string path(const char* key) const { return name_.empty() ? key : name_ + "." + key; }

  [[noreturn]] void wrong(const char* key, const ordered_json& value) const {
    switch (value.type()) {
      case ordered_json::value_t::string:
        refuse(key, "is a string");
      case ordered_json::value_t::boolean:
        refuse(key, "is a flag");
      case ordered_json::value_t::array:
        refuse(key, "is a list");
      case ordered_json::value_t::object:
        refuse(key, "is an object");
      default:
        refuse(key, "is a number");
    }
  }

  const ordered_json* object_;
  std::string name_;
};

// `deprecated` is a flag that means "to the CPU".
void read_offload(const Section& zero, const char* key, const char* deprecated,
                  OffloadDevice& out) {
  zero.section(key).read("device", out);
  if (!zero.has(deprecated)) return;
  if (zero.has(key)) zero.refuse(deprecated, "stands beside " + std::string(key));
  bool offload = false;
  zero.read(deprecated, offload);
  if (offload) out = OffloadDevice::cpu;
}

void read_zero(const Section& config, EngineConfig& out) {
  const ordered_json* value = config.find("zero_optimization");
  if (value != nullptr && value->is_boolean()) {
    out.zero_stage = value->get<bool>() ? 1 : 0;
    return;
  }
  const Section zero = config.section("zero_optimization");
  int64_t stage = 0;
  zero.read("stage", stage);
  if (stage < 0 || stage > 3) {
    zero.refuse("stage", "is " + std::to_string(stage) + ", which is none of 0 to 3");
  }
  out.zero_stage = static_cast<int>(stage);
  read_offload(zero, "offload_optimizer", "cpu_offload", out.offload_optimizer);

  zero.read("round_robin_gradients", out.round_robin_gradients);
  zero.read("parameter_alignment", out.parameter_alignment);

  zero.read("sub_group_size", out.sub_group_size);
  if (out.sub_group_size < 0) zero.refuse("sub_group_size", "is negative");
  zero.read("compute_grad_norm", out.compute_grad_norm);
  zero.read("legacy_stage1", out.legacy_stage1);
  out.zenflow = zero.has("zenflow");
}

void read_precision(const Section& config, EngineConfig& out) {
  const Section fp16 = config.section("fp16");
  const Section bf16 = config.section(config.has("bf16") ? "bf16" : "bfloat16");
  bool is_fp16 = false;
  bool is_bf16 = false;
  fp16.read("enabled", is_fp16);
  bf16.read("enabled", is_bf16);
  if (is_fp16 && is_bf16) throw UsageError("fp16 and bf16 are both enabled");
  if (is_fp16) out.precision = Precision::fp16;
  if (is_bf16) out.precision = Precision::bf16;
  fp16.read("fp16_master_weights_and_grads", out.fp16_master_weights_and_grads);
  bf16.read("bf16_master_weights_and_grads", out.bf16_master_weights_and_grads);
  bf16.read("bf16_optimizer_states", out.bf16_optimizer_states);

  LossScaleConfig& scale = out.loss_scale;
  fp16.read("loss_scale", scale.loss_scale);
  if (!(scale.loss_scale >= 0) || std::isinf(scale.loss_scale)) {
    fp16.refuse("loss_scale", "is " + python_repr(scale.loss_scale));
  }
  fp16.read("initial_scale_power", scale.initial_scale_power);
  fp16.read("loss_scale_window", scale.loss_scale_window);
  fp16.read("hysteresis", scale.hysteresis);
  fp16.read("consecutive_hysteresis", scale.consecutive_hysteresis);
  fp16.read("min_loss_scale", scale.min_loss_scale);
  if (is_fp16 && scale.is_dynamic()) {
    if (scale.loss_scale_window <= 0) fp16.refuse("loss_scale_window", "is not positive");
    if (scale.min_loss_scale <= 0) fp16.refuse("min_loss_scale", "is not positive");
  }

  const Section types = config.section("data_types");
  types.read("grad_accum_dtype", out.grad_accum_dtype);
  std::optional<Precision> param_dtype;
  types.read("param_dtype", param_dtype);
  if (param_dtype && *param_dtype != out.precision) {
    types.refuse("param_dtype", "is " + std::string(to_string(*param_dtype)) +
                                    ", but the precision is " +
                                    std::string(to_string(out.precision)));
  }
}

void read_optimizer(const Section& config, EngineConfig& out) {
  // config.py DEEPSPEED_OPTIMIZERS
  constexpr std::array<std::string_view, 9> kOwn{"adagrad", "adam",  "adamw", "lamb", "muadam",
                                                 "muadamw", "musgd", "lion",  "muon"};
  const Section optimizer = config.section("optimizer");
  optimizer.read("type", out.optimizer_type);
  std::string lower = out.optimizer_type;
  std::transform(lower.begin(), lower.end(), lower.begin(), [](char c) {
    return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  });
  if (std::find(kOwn.begin(), kOwn.end(), lower) != kOwn.end()) out.optimizer_type = lower;
  optimizer.section("params").read("torch_adam", out.torch_adam);
}

}  // namespace

ordered_json json_of(const Value& config) {
  return ToJson().convert(config, {});
}

Value pickle_of(pickle::Document& document, const ordered_json& config) {
  return to_pickle(document, config, {});
}

ordered_json load_ds_config(const fs::path& path) {
  const InputFile file(path);
  if (file.size() > kMaxFileBytes) {
    throw UsageError(path.string() + ": is too long for a configuration");
  }
  const std::vector<std::byte> bytes = file.read(0, file.size());
  const std::string_view text = as_text(bytes);
  const Where where{.file = path.string()};
  return in_context(where, [&] {
    Builder builder;
    if (!ordered_json::sax_parse(text, &builder, ordered_json::input_format_t::json, true, true)) {
      throw UsageError(line_and_column(text, builder.error_position()) + ": " + builder.error());
    }
    ordered_json config = builder.take();
    if (!config.is_object()) throw UsageError("is not an object of JSON");
    return config;
  });
}

std::string ds_config_text(const ordered_json& config) {
  ordered_json written = config;
  if (written.is_object()) {
    const auto steps = written.find("steps_per_print");
    if (steps != written.end() && steps->is_number_float() && std::isinf(steps->get<double>())) {
      *steps = nullptr;
    }
  }
  check_writable(written, {});
  return in_context({.member = "ds_config"}, [&] {
    try {
      return written.dump(2) + "\n";
    } catch (const ordered_json::exception&) {
      throw UnsupportedError({}, "has a key that is not UTF-8, so JSON cannot hold it");
    }
  });
}

ordered_json with_autos_from(ordered_json config, const ordered_json& source) {
  if (!config.is_object() || !source.is_object()) return config;
  for (auto& [key, value] : config.get_ref<ordered_json::object_t&>()) {
    const auto from = source.find(key);
    if (from == source.end()) continue;
    if (value.is_string() && value.get_ref<const std::string&>() == kAuto) {
      value = *from;
    } else if (value.is_object()) {
      value = with_autos_from(std::move(value), *from);
    }
  }
  return config;
}

std::string_view to_string(Precision precision) {
  constexpr std::array<std::string_view, 3> kNames{"fp32", "fp16", "bf16"};
  return kNames[static_cast<size_t>(precision)];
}

std::string_view to_string(OffloadDevice device) {
  constexpr std::array<std::string_view, 3> kNames{"none", "cpu", "nvme"};
  return kNames[static_cast<size_t>(device)];
}

std::optional<bool> EngineConfig::uses_fused_adam() const {
  if (optimizer_type.empty()) return std::nullopt;
  return (optimizer_type == "adam" || optimizer_type == "adamw") && !torch_adam &&
         offload_optimizer == OffloadDevice::none;
}

EngineConfig engine_config(const ordered_json& config) {
  if (!config.is_object()) throw UsageError("ds_config: is not an object");
  EngineConfig result;
  const Section top(&config);
  read_zero(top, result);
  read_precision(top, result);
  read_optimizer(top, result);
  const Section checkpoint = top.section("checkpoint");
  checkpoint.read("load_universal", result.load_universal);
  result.checkpoint_writer = checkpoint.has("writer");
  top.section("tensor_parallel").read("autotp_size", result.autotp_size);
  top.read("gradient_clipping", result.gradient_clipping);
  top.read("train_batch_size", result.train_batch_size);
  top.read("train_micro_batch_size_per_gpu", result.train_micro_batch_size_per_gpu);
  top.read("gradient_accumulation_steps", result.gradient_accumulation_steps);
  return result;
}

EngineWrapper wrapper_of(const EngineConfig& config, bool fused_adam) {
  const Precision gradients = config.grad_accum_dtype.value_or(config.precision);
  if (config.zero_stage == 0) {
    // config.py _do_error_check
    if (config.fp16_master_weights_and_grads || config.bf16_master_weights_and_grads ||
        config.bf16_optimizer_states) {
      throw UsageError("masters and optimizer states in 16 bits need ZeRO stage 1, 2 or 3");
    }
    if (gradients != config.precision) {
      throw UsageError("without ZeRO, gradients of a model in " +
                       std::string(to_string(config.precision)) + " cannot be accumulated in " +
                       std::string(to_string(gradients)));
    }
    if (config.precision == Precision::fp32) return EngineWrapper::plain;
    return fused_adam ? EngineWrapper::fp16_fused : EngineWrapper::fp16_unfused;
  }
  if (config.bf16_optimizer_states && !config.bf16_master_weights_and_grads) {
    throw UsageError("bf16.bf16_optimizer_states needs bf16.bf16_master_weights_and_grads");
  }
  // Offload to NVMe does not count here, as in zero_cpu_offload().
  if (config.zero_stage == 1 && config.precision == Precision::bf16 &&
      gradients == Precision::fp32 && config.offload_optimizer != OffloadDevice::cpu) {
    if (!config.compute_grad_norm) {
      throw UsageError(
          "zero_optimization.compute_grad_norm cannot be false at ZeRO stage 1 in bf16 with "
          "gradients accumulated in fp32");
    }
    return EngineWrapper::bf16_optimizer;
  }
  if (config.legacy_stage1) {
    throw UsageError("zero_optimization.legacy_stage1: DeepSpeed has no such stage any more");
  }
  if (config.zenflow) {
    throw UnsupportedError({.member = "zero_optimization.zenflow"},
                           "checkpoints of ZenFlow are laid out in another way");
  }
  return config.zero_stage == 3 ? EngineWrapper::zero3 : EngineWrapper::zero12;
}

}  // namespace dsckpt
