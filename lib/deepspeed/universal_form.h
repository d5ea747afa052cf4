// The cut of a merged parameter over the tensor-parallel ranks, as DeepSpeed's loader needs it to
// cut the parameter again. These are the keys beside `param` in a universal checkpoint's dicts.
// Source: deepspeed/checkpoint/ds_to_universal.py merge_tp_slices, universal_checkpoint.py
// load_hp_checkpoint_state.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace dsckpt {

// deepspeed.checkpoint.universal_checkpoint.SubparamShape, with its original Python types.
struct SubparamShape {
  struct Dim {
    bool is_tuple = false;       // a tuple of sub-sizes, else one integer (-1: whatever is left)
    std::vector<int64_t> sizes;  // one unless is_tuple
    bool operator==(const Dim&) const = default;
  };
  std::vector<std::string> patterns;
  std::vector<Dim> shape;
  bool shape_is_list = false;  // a list, else a tuple
  int64_t partition_dim = 0;
  bool operator==(const SubparamShape&) const = default;
};

struct UniversalForm {
  std::optional<int64_t> cat_dim;
  std::optional<int64_t> n_sub_params;
  std::optional<SubparamShape> sub_param_shape;
  // The rows without the vocabulary's padding; the key is vocab_tensor = True.
  std::optional<int64_t> vocab_rows;
  // The number of experts, for fused experts only (is_expert_param = True).
  std::optional<int64_t> ep_num_experts;
  bool operator==(const UniversalForm&) const = default;
};

}  // namespace dsckpt
