// The understood part of the configuration (ds_config) of the run that saved a checkpoint.
//
// DeepSpeed saves the configuration that it was given, which may be the path of a file, and
// programs change it. A reader must not fail for that. A field that is missing, of another type or
// "auto" counts as absent. A configuration that is not a dict has no fields.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "deepspeed/engine_config.h"
#include "dsckpt/dtype.h"
#include "pickle/pickle.h"

namespace dsckpt {

// Settings for an optimizer on NVMe. zero/offload_config.py, swap_tensor/aio_config.py.
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
  bool saved = false;                  // true if the files have it as a dict
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
  // The engine of this configuration; nullopt if any part of it is not understood.
  std::optional<EngineConfig> engine;

  // True if flat groups may be ordered otherwise than the optimizer's groups: unless the
  // configuration excludes it.
  bool may_be_round_robin() const { return !saved || round_robin_gradients; }

  bool operator==(const RunConfig&) const = default;
};

// `offload` is read from `optim_states`, the ds_config of the optimizer-states file that refers to
// swap files. All else is read from `model_states`. Each may be any value, None if there is none.
// Throws only std::bad_alloc.
RunConfig run_config(const pickle::Value& model_states, const pickle::Value& optim_states);

// The number of ranks whose files a world of `dp_world_size` has, by one ds_config: all ranks,
// except under MiCS.
int64_t saving_ranks(const pickle::Value& ds_config, int64_t dp_world_size);

}  // namespace dsckpt
