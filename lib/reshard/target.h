// The run that resharded files are for: what its engine expects of them.
#pragma once

#include <cstdint>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "checkpoint/checkpoint.h"
#include "deepspeed/engine_config.h"
#include "dsckpt/dtype.h"

namespace dsckpt {

struct TargetOptions {
  uint32_t dp = 1;  // data-parallel ranks of the new run, of each mp rank
  // Expert-parallel ranks of the new run. Default: as it was.
  std::optional<uint32_t> ep;
  // ZeRO stage of the new run, 0 to 3. Default: what `ds_config` or `like` say, else as it was.
  std::optional<int> stage;
  // zero_optimization.sub_group_size of the new run, elements. Default likewise.
  std::optional<uint64_t> sub_group_size;
  // The new run's configuration.
  std::optional<nlohmann::ordered_json> ds_config;
  // A checkpoint that the new run has saved, open with optimizer states: it has the parameter
  // groups, their order, and the layout. Hyper-parameters are taken from it where the groups are
  // others.
  const Checkpoint* like = nullptr;
};

// Of one world: a pipeline stage and tensor-parallel rank, or all there is.
struct ReshardTarget {
  uint32_t dp = 1;
  uint32_t mp_rank = 0;
  uint32_t ep = 1;                   // the largest of the groups'
  bool data_before_experts = false;  // use_data_before_expert_parallelism
  int stage = 0;
  EngineWrapper wrapper = EngineWrapper::plain;
  // Type of the parameters in `module`; nullopt: each as the checkpoint has it.
  std::optional<DType> param_dtype;
  // Whether the loss scaler is to be that of another precision, and whether that is fp16.
  bool new_loss_scaler = false;
  bool fp16 = false;
  bool bf16_names = false;  // bf16_zero_pp_rank_...
  bool elastic = false;     // stages 1 and 2 without hyper-parameters
  bool round_robin = false;
  bool parameter_alignment = false;
  uint64_t sub_group_size =
      0;  // elements
          // Every parameter that the optimizer has. Groups may be empty at stages 0 and 3.
  std::vector<ParamGroup> groups;
  // ds_config of the new files; nullopt: as in the old ones.
  std::optional<nlohmann::ordered_json> ds_config;
  // The new run's configuration as far as it is known.
  EngineConfig engine;
};

// What the saved run's ds_config says; nullopt if the files do not have it as a dict.
std::optional<nlohmann::ordered_json> saved_ds_config(const Checkpoint& checkpoint);

// The type of the parameters in `module`.
DType param_dtype_of(const Checkpoint& checkpoint);

// The target of `source` with `options`. Adds notes on what the new run has to look out for. Throws
// UsageError for options that contradict each other or the checkpoint, UnsupportedError for what
// cannot be cut anew or DeepSpeed could not load, InconsistentError for parameters that `like` has
// and the source has not, or the other way round.
ReshardTarget reshard_target(const Checkpoint& source, const TargetOptions& options,
                             std::vector<std::string>& notes);

}  // namespace dsckpt
