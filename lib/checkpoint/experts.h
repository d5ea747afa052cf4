// Experts: parameters that expert-parallel ranks hold different ones of.
//
// DeepSpeed's own MoE layers name them `...deepspeed_experts.N...`, where N counts a rank's local
// experts. AutoEP fuses a layer's experts into three parameters `PREFIX.w1`, `.w2`, `.w3` of shape
// [local experts, ...]. Its model-states file says which expert lies where. Sources:
// deepspeed/moe/experts.py; checkpoint/autoep_affine.py.
#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "base/keyed_hash.h"
#include "checkpoint/zero_world.h"

namespace dsckpt {

// More of them is damage.
inline constexpr int64_t kMaxExperts = 1 << 24;

// `...deepspeed_experts.` NUMBER `...`, the name of a parameter of one of DeepSpeed's own experts.
struct ExpertName {
  std::string before;
  int64_t number;
  std::string after;  // begins with a dot

  std::string with(int64_t other) const { return before + std::to_string(other) + after; }
};
std::optional<ExpertName> parse_expert_name(const std::string& name);

// True for a parameter of one of DeepSpeed's own experts, or of several of AutoEP's.
bool is_expert(const Param& param);

// Where a model-states file describes AutoEP's layers: ds_autoep_layers, or as older releases call
// it.
std::string_view autoep_layers_key(const pickle::Value& root);
// One of AutoEP's layers as a model-states file describes it.
struct AutoEpRecord {
  uint32_t number = 0;  // among the model's layers of experts
  int64_t num_experts = 0;
  std::string prefix;  // "model.layers.0.mlp.experts"

  // The names of its fused parameters: PREFIX.w1, .w2, .w3.
  std::vector<std::string> fused() const;
};
// None without AutoEP. Throws CorruptError for a record of the wrong form.
std::vector<AutoEpRecord> autoep_records(const pickle::Value& root);
// True if a model-states file says that AutoEP is folded with tensor parallelism: the
// tensor-parallel ranks hold different experts. Its worlds cannot be read one by one.
bool is_folded(const pickle::Value& root);

class Experts {
 public:
  // Reads ds_autoep_layers, if there is any. Throws CorruptError if it has the wrong form,
  // UnsupportedError for another version of it.
  explicit Experts(const ModelStates& model);

  // Gives DeepSpeed's own experts the names they have in a model that is not split, by counting the
  // local experts of each rank.
  static void number_globally(std::vector<OwnedParam>& params);

  // The fused parameters, layer by layer: w1, w2, w3.
  const std::vector<std::string>& fused() const { return fused_; }
  // The numbers of the experts that `ep_rank` has of the fused parameter `name`, in its order.
  // Throws CorruptError if the placement does not list them, and UnsupportedError as merge() does.
  std::vector<int64_t> experts_of(const std::string& name, int64_t ep_rank);
  bool is_fused(const std::string& name) const { return layers_.contains(name); }
  int64_t num_experts(const std::string& name) const { return layers_.at(name).num_experts; }
  // All experts of the fused parameter `name`, in the order of their numbers; `state` is for
  // messages. Each expert-parallel rank's part is in `by_rank`, in rank order. Throws
  // InconsistentError if they do not fit the layer. Throws UnsupportedError if all calls together
  // have more than 2^22 experts.
  TensorSource merge(const std::string& name, const std::vector<TensorSource>& by_rank,
                     std::string_view state);

 private:
  struct Layer {
    int64_t num_experts = 0;
    int64_t ep_size = 0;
    pickle::Value placement;  // None: the same number on each rank, in order
    Where where;
  };
  // Counts experts that a call goes through: many layers may share one long placement.
  void count_experts(const Layer& layer, const std::string& name, size_t experts);

  KeyedMap<std::string, Layer> layers_;  // by name of the fused parameter
  std::vector<std::string> fused_;
  uint64_t counted_ = 0;
};

// Adds to model.shared_params the second name that AutoEP gives a layer's router. The former module
// "mlp.gate" is then the router itself ("mlp.router"), and `module` has it twice. auto_ep_layer.py
// AutoEPMoELayer, alias_target. At stage 3 `module` has no values, and only the names tell; else
// both have to be equal.
void add_router_aliases(ModelStates& model, const InputFiles& inputs);

// Files that are not there: how many, and the names of as many as a message lists, and one more.
struct MissingFiles {
  uint64_t count = 0;
  std::vector<std::string> names;

  void add(std::string name);
  // Those of the experts below `experts` of a layer that are not `there`. A few bytes may speak of
  // millions: they are counted, not walked.
  void add_experts(uint32_t mp_rank, uint32_t layer, int64_t experts,
                   const std::set<uint32_t>& there);
};

// Throws InconsistentError that lists the missing files of the experts in the model-states files of
// draft.model_shards. By engine.py _save_moe_checkpoint there is a file for each expert of each
// layer and mp rank. If AutoEP is folded with tensor parallelism, only the mp rank with the expert
// has one. Stage 3 has none.
void check_expert_files(const CheckpointDraft& draft);

}  // namespace dsckpt
