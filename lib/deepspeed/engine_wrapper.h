// The wrapper that DeepSpeed's engine puts around an optimizer. It decides the layout of the
// optimizer states in a checkpoint.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace dsckpt {

// engine.py _do_optimizer_sanity_check, and the wrapper that it then configures.
enum class EngineWrapper : uint8_t {
  plain,           // nothing: stage 0 in fp32
  fp16_unfused,    // FP16_UnfusedOptimizer: stage 0 in fp16 or bf16
  fp16_fused,      // FP16_Optimizer: the same with FusedAdam
  bf16_optimizer,  // BF16_Optimizer: stage 1 in bf16, gradients accumulated in fp32
  zero12,          // DeepSpeedZeroOptimizer
  zero3,           // DeepSpeedZeroOptimizer_Stage3
};
inline constexpr size_t kEngineWrappers = 6;

// The class's name; "" for plain.
constexpr std::string_view to_string(EngineWrapper wrapper) {
  constexpr std::array<std::string_view, kEngineWrappers> kNames{"",
                                                                 "FP16_UnfusedOptimizer",
                                                                 "FP16_Optimizer",
                                                                 "BF16_Optimizer",
                                                                 "DeepSpeedZeroOptimizer",
                                                                 "DeepSpeedZeroOptimizer_Stage3"};
  return kNames[static_cast<size_t>(wrapper)];
}

}  // namespace dsckpt
