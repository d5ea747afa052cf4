// The run that resharded files are for: what its engine expects of them.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "checkpoint/checkpoint.h"
#include "deepspeed/ds_config.h"
#include "deepspeed/engine_config.h"
#include "deepspeed/release.h"
#include "dsckpt/dtype.h"
#include "plan/tensor_source.h"
#include "reshard/run_facts.h"

namespace dsckpt {

struct TargetOptions {
  uint32_t dp = 1;  // data-parallel ranks of the new run, of each mp rank
  // Expert-parallel ranks of the new run. Default: as it was.
  std::optional<uint32_t> ep = {};
  // ZeRO stage of the new run, 0 to 3. Default: what `ds_config` or `like` say, else as it was.
  std::optional<int> stage = {};
  // zero_optimization.sub_group_size of the new run, elements. Default likewise.
  std::optional<uint64_t> sub_group_size = {};
  // The release that is to load it. Default: the one that `like` says, else the checkpoint.
  std::string ds_version = {};
  // The new run's configuration.
  std::optional<nlohmann::ordered_json> ds_config = {};
  // A checkpoint that the new run has saved, open with optimizer states: it has the parameter
  // groups, their order, and the layout. Hyper-parameters are taken from it where the groups are
  // others.
  const Checkpoint* like = nullptr;
};

// The target of one world: a pipeline stage and tensor-parallel rank, or the whole checkpoint.
struct ReshardTarget {
  uint32_t dp = 1;
  uint32_t mp_rank = 0;
  uint32_t ep = 1;                   // the largest of the groups'
  bool data_before_experts = false;  // use_data_before_expert_parallelism
  // Stage 0 of a model with experts: each expert-parallel rank has its optimizer in a file of its
  // own.
  bool expert_optimizers = false;
  int stage = 0;
  EngineWrapper wrapper = EngineWrapper::plain;
  Precision precision = Precision::fp32;
  // The type of the trained parameters in the checkpoint's `module`, and the one that all
  // parameters there are to have; nullopt: each its own.
  DType saved_param_dtype = DType::float32;
  std::optional<DType> param_dtype = {};
  // True if the loss scaler starts anew: for another precision, or for a run from weights.
  bool new_loss_scaler = false;
  bool elastic = false;  // stages 1 and 2 without hyper-parameters
  bool round_robin = false;
  bool parameter_alignment = false;
  uint64_t sub_group_size = 0;  // stage 3, elements
  // Every parameter that the optimizer has. Groups may be empty at stages 0 and 3.
  std::vector<RunGroup> groups = {};
  // ds_config of the new files; nullopt: as in the old ones.
  std::optional<nlohmann::ordered_json> ds_config = {};
  // The release that will load it; nullopt: unknown, and treated as of today. The new files name
  // `ds_version`; "" keeps that of the old ones.
  std::optional<Release> release = {};
  std::string ds_version = {};
  // The new run's configuration as far as it is known.
  EngineConfig engine = {};

  // True if the parameters of a group are one flat vector, cut over the ranks.
  bool is_zero12() const { return stage == 1 || stage == 2; }
};

// The target for the run that `source` describes, or `like` if that is not null (`options.like` is
// not looked at). It depends on its arguments alone, and borrows their strings and values. The
// warnings for the new run are added to `notes`. Throws UsageError for options that contradict each
// other or the checkpoint. Throws UnsupportedError for values that cannot be cut anew, or that
// DeepSpeed could not load. Throws InconsistentError for parameters that only one of `like` and the
// source has: see refusals.h.
ReshardTarget choose_target(const RunFacts& source, const RunFacts* like,
                            const TargetOptions& options, std::vector<std::string>& notes);

// The same of the checkpoints `source` and `options.like`.
ReshardTarget reshard_target(const Checkpoint& source, const TargetOptions& options,
                             std::vector<std::string>& notes);

// An entry of a rank's model that is not in its model-states file: of a layer, or of an expert.
struct ModuleEntry {
  std::string name;
  TensorSource value;
};

}  // namespace dsckpt
