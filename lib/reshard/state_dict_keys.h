// The optimizer values that each of the engine's wrappers saves: the keys of its state_dict() in
// their order. Each key has the function that makes its value for a rank of the target. One
// wrapper, or a family of them, a file.
#pragma once

#include <span>

#include "deepspeed/engine_wrapper.h"
#include "reshard/rank_file.h"

namespace dsckpt {

std::span<const DictKey> state_dict_keys(EngineWrapper wrapper);

// zero12_keys.cpp, zero3_keys.cpp, stage0_keys.cpp.
std::span<const DictKey> zero12_keys();
std::span<const DictKey> bf16_optimizer_keys();
std::span<const DictKey> zero3_keys();
std::span<const DictKey> fp16_fused_keys();
std::span<const DictKey> fp16_unfused_keys();

// The state_dict() of the target's wrapper, with what is not known of the saved one
// (SourceOffer::keeps_unknown_state) at its end.
pickle::Value wrapper_state_dict(const RankFile& file);

// The keys of an optimizer-states file: engine.py _save_zero_checkpoint.
std::span<const DictKey> optim_file_keys();

}  // namespace dsckpt
