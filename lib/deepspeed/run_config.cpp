#include "deepspeed/run_config.h"

#include "deepspeed/config_pickle.h"
#include "dsckpt/error.h"

namespace dsckpt {
using pickle::Kind;
using pickle::Value;
namespace {

std::optional<std::string> text_of(const Value& value) {
  if (!value.is(Kind::string)) return std::nullopt;
  return std::string(value.as_string());
}

DType master_dtype_of(const Value& config) {
  if (config.find_or_none("bf16").find_or_none("bf16_master_weights_and_grads").is_true()) {
    return DType::bfloat16;
  }
  if (config.find_or_none("fp16").find_or_none("fp16_master_weights_and_grads").is_true()) {
    return DType::float16;
  }
  return DType::float32;
}

uint64_t aio_threads_of(const Value& config) {
  constexpr int64_t kMostThreads = 1 << 16;
  const Value aio = config.find_or_none("aio");
  for (const char* key : {"intra_op_parallelism", "thread_count"}) {
    const Value threads = aio.find_or_none(key);
    if (!threads.is(Kind::integer)) continue;
    if (threads.as_int() < 1 || threads.as_int() > kMostThreads) break;
    return static_cast<uint64_t>(threads.as_int());
  }
  return 1;
}

// Reads the device from zero_optimization.offload_optimizer or offload_param.
std::optional<std::string> device_of(const Value& config, const char* offload) {
  const Value zero = config.find_or_none("zero_optimization");
  return text_of(zero.find_or_none(offload).find_or_none("device"));
}

OffloadConfig offload_config(const Value& config) {
  return {.nvme = device_of(config, "offload_optimizer") == to_string(OffloadDevice::nvme),
          .master_dtype = master_dtype_of(config),
          .aio_threads = aio_threads_of(config),
          .node_local_storage =
              config.find_or_none("checkpoint").find_or_none("use_node_local_storage").is_true()};
}

std::optional<EngineConfig> engine_of(const Value& config) {
  try {
    return engine_config(json_of(config));
  } catch (const Error&) {
    return std::nullopt;
  }
}

}  // namespace

RunConfig run_config(const Value& model_states, const Value& optim_states) {
  RunConfig result;
  result.offload = offload_config(optim_states);
  if (!model_states.is_mapping()) return result;
  result.saved = true;
  const Value zero = model_states.find_or_none("zero_optimization");
  const Value stage = zero.find_or_none("stage");
  if (zero.is_none()) result.zero_stage = 0;
  if (stage.is(Kind::integer)) result.zero_stage = stage.as_int();
  result.bf16 = model_states.find_or_none("bf16").find_or_none("enabled").is_true();
  result.round_robin_gradients = zero.find_or_none("round_robin_gradients").is_true();
  result.data_before_expert_parallelism =
      model_states.find_or_none("use_data_before_expert_parallelism").is_true();
  const auto params = device_of(model_states, "offload_param");
  result.offloads_params = params && params != to_string(OffloadDevice::none);
  result.optimizer_type = text_of(model_states.find_or_none("optimizer").find_or_none("type"));
  const Value clipping = model_states.find_or_none("gradient_clipping");
  if (clipping.is(Kind::real) || clipping.is(Kind::integer)) {
    result.gradient_clipping = clipping.as_real();
  }
  result.zenflow = !zero.find_or_none("zenflow").is_none();
  result.engine = engine_of(model_states);
  return result;
}

int64_t saving_ranks(const pickle::Value& ds_config, int64_t dp_world_size) {
  // zero/mics.py: groups of mics_shard_size ranks have the same shards, and only the first group
  // saves.
  const pickle::Value size =
      ds_config.find_or_none("zero_optimization").find_or_none("mics_shard_size");
  const bool mics = size.is(pickle::Kind::integer) && size.as_int() > 0;
  return mics && dp_world_size % size.as_int() == 0 ? size.as_int() : dp_world_size;
}

}  // namespace dsckpt
