// The configuration (ds_config) of the run that saved a checkpoint, as far as it is understood.
//
// DeepSpeed saves what it was given, which may be the path of a file, and programs change it. A
// reader must not stop for that: each field that is missing, of another type or "auto" counts as
// absent, and a configuration that is no dict as one without fields.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "deepspeed/engine_config.h"
#include "dsckpt/dtype.h"
#include "pickle/pickle.h"

namespace dsckpt {

// What it says of an optimizer on NVMe. zero/offload_config.py, swap_tensor/aio_config.py.
struct OffloadConfig {
  bool nvme = false;  // zero_optimization.offload_optimizer.device
  // The type of masters and states: bf16.bf16_master_weights_and_grads,
  // fp16.fp16_master_weights_and_grads. engine.py get_data_types.
  DType master_dtype = DType::float32;
  // aio.intra_op_parallelism, thread_count in old releases; 1 to 65536.
  uint64_t aio_threads = 1;
  bool node_local_storage = false;  // checkpoint.use_node_local_storage

  bool operator==(const OffloadConfig&) const = default;
};

struct RunConfig {
  bool saved = false;                  // whether it is in the files as a dict
  bool bf16 = false;                   // bf16.enabled
  std::optional<int64_t> zero_stage;   // zero_optimization.stage, 0 if there is no such section
  bool round_robin_gradients = false;  // zero_optimization
  // use_data_before_expert_parallelism; nullopt unless `saved`.
  std::optional<bool> data_before_expert_parallelism;
  bool offloads_params = false;               // zero_optimization.offload_param.device is not none
  std::optional<std::string> optimizer_type;  // optimizer.type
  std::optional<double> gradient_clipping;
  // zero_optimization.zenflow is there: weights and states of some elements run ahead of the rest.
  bool zenflow = false;
  OffloadConfig offload;
  // What it makes of an engine; nullopt if any part of it is not understood.
  std::optional<EngineConfig> engine;

  // Whether flat groups may have another order than the optimizer's: only where the configuration
  // says nothing against it.
  bool may_be_round_robin() const { return !saved || round_robin_gradients; }

  bool operator==(const RunConfig&) const = default;
};

// `offload` is of `optim_states`, the ds_config of the optimizer-states file that refers to swap
// files; everything else of `model_states`. Each may be any value, None for what is not there.
// Throws nothing but std::bad_alloc.
RunConfig run_config(const pickle::Value& model_states, const pickle::Value& optim_states);

// Of how many ranks the files of a world of `dp_world_size` are, by the ds_config of one: all, but
// under MiCS.
int64_t saving_ranks(const pickle::Value& ds_config, int64_t dp_world_size);

}  // namespace dsckpt
