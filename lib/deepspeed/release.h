// A release of DeepSpeed, by which what a field means is told where the files do not tell it.
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

// Of a ds_version: "0.16.4", "0.9.5+fe5bdd4", "0.17", "1.0.0rc1". nullopt if it does not begin with
// a number.
std::optional<Release> release_of(std::string_view ds_version);

// The first one whose optimizers are not stepped once with zero gradients before the training:
// until then they count a step more than the engine. stage_1_and_2.py, stage3.py, bf16_optimizer.py
// initialize_optimizer_states.
inline constexpr Release kNoStepAtStart{{0, 13, 2}};
// The first one whose placeholders for cut parameters at stage 3 have no elements; before, they had
// one. partition_parameters.py free_param.
inline constexpr Release kEmptyPlaceholders{{0, 6, 0}};
// The first one that has ZeroStageEnum; before, zero_stage is a number. zero/config.py.
inline constexpr Release kZeroStageEnum{{0, 7, 1}};

}  // namespace dsckpt
