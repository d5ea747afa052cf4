// Patches: where the digests of outputs are written over what was there.
#pragma once

#include <cstdint>
#include <functional>
#include <unordered_map>
#include <vector>

#include "plan/copy_plan.h"

namespace dsckpt {

// Offsets by output, rising; of outputs that have any.
using Patches = std::unordered_map<OutputId, std::vector<uint64_t>>;

// Of the outputs that `are_wanted`.
Patches patches_of(const CopyPlan& plan, const std::function<bool(OutputId)>& are_wanted);

}  // namespace dsckpt
