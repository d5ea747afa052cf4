// Facts about a run from a checkpoint of it, as far as they shape the files of another run. Plain
// data: pickles and file names are read once.
#pragma once

#include <cstddef>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/keyed_hash.h"
#include "checkpoint/checkpoint.h"
#include "deepspeed/ds_config.h"
#include "deepspeed/engine_config.h"
#include "dsckpt/dtype.h"

namespace dsckpt {

// The contents of the first of a checkpoint's model-states files.
pickle::Value root_of(const Checkpoint& world);

// Its param_shapes, or, of releases before 0.6, those in its first optimizer-states file. None of
// weights alone.
pickle::Value saved_param_shapes(const Checkpoint& world);

// The hyper-parameters of a parameter group: its entry of param_groups.
struct GroupSettings {
  ShardValue value = {};  // handed on as it is
  bool known = false;     // elastic files have none
  // Marks experts: moe/utils.py split_params_into_different_moe_groups_for_optimizer.
  bool moe = false;
  bool bias_correction = false;  // whether there is one, as DeepSpeed's own Adam has
  bool amsgrad = false;          // likewise, as torch's Adam has
};

GroupSettings group_settings(const ShardValue& entry);

// One of the optimizer's parameter groups.
struct RunGroup {
  std::vector<std::string> params;  // in the order in which the optimizer was given them
  GroupSettings settings = {};
  uint32_t ep_size = 1;  // expert-parallel ranks that its experts are spread over
  // True if the optimizer was given experts without a mark, perhaps beside other parameters. ZeRO
  // does not take these.
  bool unmarked_experts = false;

  bool has_experts() const { return ep_size > 1 || settings.moe || unmarked_experts; }
};

// The entries of a model by name; borrows them.
class ParamIndex {
 public:
  ParamIndex() = default;
  explicit ParamIndex(std::span<const Param> params);

  std::span<const Param> all() const { return params_; }
  const Param* find(std::string_view name) const;  // or nullptr

 private:
  std::span<const Param> params_;
  KeyedMap<std::string_view, const Param*> by_name_;
};

// True if the optimizer has stepped it, or keeps any state of it.
bool has_states(const Param& param);

struct RunFacts {
  CheckpointFacts checkpoint;
  std::string folder;  // of the shards
  std::string file;    // the first model-states file; "" of weights alone
  // Checkpoint::changed_from, which its files are of.
  const Checkpoint* changed_from = nullptr;
  // For a checkpoint of one world: its mp rank.
  uint32_t mp_rank = 0;

  ParamIndex params;
  std::vector<RunGroup> groups;         // none if the files do not tell
  std::vector<std::string> state_keys;  // of all parameters, sorted
  // Stage 3: how many parameters the sub-groups have; 0 for an entry that does not say it.
  std::vector<size_t> sub_groups;

  // True if the values of its model are in files of layers.
  bool is_pipeline = false;
  // True if its model has layers of experts.
  bool has_expert_layers = false;
  std::vector<std::string> autoep_params;  // the fused parameters of AutoEP's
  bool has_optimizer = false;
  // base_optimizer_state_step of elastic files, which only DeepSpeed's own Adam has.
  bool has_base_step = false;
  // The type of the trained parameters in `module`; without such, of no meaning.
  DType param_dtype = DType::float32;
  // The precision of DeepSpeed that was on, whatever type the model's own parameters have. Names of
  // files and wrappers tell it, else the configuration.
  Precision precision = Precision::fp32;

  // ds_config, if the files have it as a dict of which JSON can be made, and what it makes of an
  // engine. A run may have worked with one that is not understood; why it is not is said here.
  std::optional<nlohmann::ordered_json> config;
  std::optional<EngineConfig> engine;
  std::string config_error;
};

// The type of a model's parameters in an engine of this precision.
DType dtype_of(Precision precision);

// The facts of `checkpoint`, open with its optimizer states, which has to outlive them. Throws
// CorruptError for a tensor of `module` that is none.
RunFacts run_facts(const Checkpoint& checkpoint);

// The saved run's ds_config; nullopt if the files do not have it as a dict.
std::optional<nlohmann::ordered_json> saved_ds_config(const Checkpoint& checkpoint);

}  // namespace dsckpt
