#include "deepspeed/engine_config.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <initializer_list>
#include <limits>
#include <nlohmann/json.hpp>
#include <utility>

#include "deepspeed/config_place.h"
#include "deepspeed/ds_config.h"
#include "dsckpt/error.h"

namespace dsckpt {
using nlohmann::ordered_json;
namespace {

bool is_absent(const ordered_json& value) {
  return value.is_null() || is_auto(value);
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
    refuse(key, "is '" + name + "', not none, cpu or nvme");
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
      refuse(key, "is '" + name + "', not fp32, fp16 or bf16");
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

// `deprecated` is an old flag for the CPU.
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
    zero.refuse("stage", "is " + std::to_string(stage) + ", not 0, 1, 2 or 3");
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
