// Releases of DeepSpeed, which decide the meaning of a field where the files do not.
#pragma once

#include <array>
#include <compare>
#include <cstdint>
#include <optional>
#include <string_view>

namespace dsckpt {

struct Release {
  std::array<uint32_t, 3> numbers{};  // 0.16.4

  auto operator<=>(const Release&) const = default;
};

// The release in a ds_version: "0.16.4", "0.9.5+fe5bdd4", "0.17", "1.0.0rc1". nullopt if it does
// not begin with a number.
std::optional<Release> release_of(std::string_view ds_version);

// True if the release is known and before `since`.
constexpr bool is_before(const std::optional<Release>& release, const Release& since) {
  return release && *release < since;
}

// --- contents of files, and their places

// Flat vectors are padded to two elements a rank; before, to one. stage_1_and_2.py
// nccl_start_alignment_factor.
inline constexpr Release kTwoElementsARank{{0, 5, 2}};
// param_shapes has a dict for each group; before, one dict has all parameters.
inline constexpr Release kParamShapesOfGroups{{0, 5, 4}};
// At stages 1 and 2 optimizer states have hyper-parameters, unless elastic_checkpoint is set.
// Before, they have none. stage_1_and_2.py ckpt_is_rigid.
inline constexpr Release kRigidStates{{0, 5, 10}};
// param_shapes lies in model-states files; before, in those of the optimizer. engine.py
// _save_checkpoint.
inline constexpr Release kParamShapesOfModel{{0, 6, 0}};
// group_paddings. stage_1_and_2.py state_dict.
inline constexpr Release kGroupPaddingsSaved{{0, 7, 0}};
// fragment_address has a module of its own, utils/tensor_fragment.py. Before, it is in
// bf16_optimizer.py.
inline constexpr Release kTensorFragment{{0, 7, 3}};
// param_slice_mappings of DeepSpeedZeroOptimizer. stage_1_and_2.py state_dict.
inline constexpr Release kSliceMappingsSaved{{0, 7, 4}};
// frozen_param_shapes and frozen_param_fragments. engine.py _save_checkpoint.
inline constexpr Release kFrozenSaved{{0, 9, 1}};
// shared_params. engine.py _save_checkpoint.
inline constexpr Release kSharedSaved{{0, 9, 2}};

// param_alignment_paddings. stage_1_and_2.py state_dict.
inline constexpr Release kParameterAlignment{{0, 19, 6}};
// The optimizer of stage 0 in bf16, which 0.17.6 to 0.18.4 do not save. engine.py
// _save_checkpoint.
inline constexpr Release kBf16StatesAtStage0{{0, 18, 5}};
// AutoEP.
inline constexpr Release kAutoEp{{0, 19, 2}};
// The first release whose sources and files were examined.
inline constexpr Release kFirstKnown{{0, 4, 0}};
// The last one, as a ds_version: files say it if no run of DeepSpeed has saved any.
inline constexpr std::string_view kNewestKnown = "0.19.8";

// --- meanings

// FusedAdam counts one step for each group. Before, at stage 3, it counts one for each sub-group
// that it steps. ops/adam/fused_adam.py step.
inline constexpr Release kStepOfGroup{{0, 6, 5}};
// The first release whose optimizers take no step with zero gradients before the training. Before,
// they count one step more than the engine. stage_1_and_2.py, stage3.py, bf16_optimizer.py
// initialize_optimizer_states.
inline constexpr Release kNoStepAtStart{{0, 13, 2}};
// The first release whose placeholders for cut parameters at stage 3 are empty. Before, they have
// one element. partition_parameters.py free_param.
inline constexpr Release kEmptyPlaceholders{{0, 6, 0}};
// The first one that has ZeroStageEnum; before, zero_stage is a number. zero/config.py.
inline constexpr Release kZeroStageEnum{{0, 7, 1}};
// Stage 0 in bf16 no longer has a BF16_Optimizer, which saved as stage 1 does. Until
// kBf16StatesAtStage0, stage 1 with fp32 gradients has none either. engine.py
// _do_optimizer_sanity_check, DDP_BFLOAT16 of constants.py.
inline constexpr Release kNoBf16OptimizerAtStage0{{0, 17, 6}};

}  // namespace dsckpt
