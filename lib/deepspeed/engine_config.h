// The engine that DeepSpeed would make of a configuration.
//
// Keys, aliases, defaults and types follow deepspeed/runtime/config.py, zero/config.py and
// precision_config.py. The choice of the optimizer's wrapper follows engine.py
// _do_optimizer_sanity_check.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>

#include "deepspeed/engine_wrapper.h"
namespace dsckpt {

enum class Precision : uint8_t { fp32, fp16, bf16 };
std::string_view to_string(Precision precision);

enum class OffloadDevice : uint8_t { none, cpu, nvme };
std::string_view to_string(OffloadDevice device);

// The section fp16, which also configures the ZeRO optimizers of the other precisions.
struct LossScaleConfig {
  double loss_scale = 0;  // 0: dynamic
  int64_t initial_scale_power = 16;
  int64_t loss_scale_window = 1000;
  int64_t hysteresis = 2;
  bool consecutive_hysteresis = false;
  int64_t min_loss_scale = 1;

  bool is_dynamic() const { return loss_scale == 0; }
  bool operator==(const LossScaleConfig&) const = default;
};

// The settings that decide the layout of an engine's state, with DeepSpeed's names and defaults.
struct EngineConfig {
  int zero_stage = 0;  // 0 to 3
  Precision precision = Precision::fp32;
  std::optional<Precision> grad_accum_dtype;  // data_types; default: the precision
  OffloadDevice offload_optimizer = OffloadDevice::none;

  bool round_robin_gradients = false;
  bool parameter_alignment = false;

  int64_t sub_group_size = 1'000'000'000;
  bool fp16_master_weights_and_grads = false;
  bool bf16_master_weights_and_grads = false;
  bool bf16_optimizer_states = false;
  bool compute_grad_norm = true;
  bool legacy_stage1 = false;
  bool zenflow = false;  // whether the section is there

  // "" if the program brings its own optimizer; in lower case for one of DeepSpeed's names.
  std::string optimizer_type;
  bool torch_adam = false;

  bool load_universal = false;
  bool checkpoint_writer = false;  // whether checkpoint.writer is there
  int64_t autotp_size = 0;         // tensor_parallel
  double gradient_clipping = 1.0;
  LossScaleConfig loss_scale;

  std::optional<int64_t> train_batch_size;
  std::optional<int64_t> train_micro_batch_size_per_gpu;
  std::optional<int64_t> gradient_accumulation_steps;

  // True if the optimizer of the configuration is DeepSpeed's FusedAdam; nullopt if it has none.
  // engine.py _configure_basic_optimizer.
  std::optional<bool> uses_fused_adam() const;

  bool operator==(const EngineConfig&) const = default;
};

// null and Hugging Face's "auto" count as absent. Deprecated keys count as their successors
// (cpu_offload, cpu_offload_param, a bare flag as zero_optimization, bfloat16). Throws UsageError,
// which names the key ("zero_optimization.stage: is a string"), for a wrong type or a value that
// DeepSpeed refuses. fp16 together with bf16 is an error too. Numbers and flags written as strings
// are refused, though DeepSpeed understands some.
EngineConfig engine_config(const nlohmann::ordered_json& config);

// The wrapper of an engine without pipeline stages. `fused_adam`: the optimizer inside is
// DeepSpeed's FusedAdam. Throws UsageError for combinations that DeepSpeed refuses,
// UnsupportedError for ZenFlow, which has another layout.
EngineWrapper wrapper_of(const EngineConfig& config, bool fused_adam);

}  // namespace dsckpt
