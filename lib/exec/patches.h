// Patches: where the digests of outputs are written over what was there.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <unordered_map>
#include <vector>

#include "plan/copy_plan.h"

namespace dsckpt {

// Of a digest: a CRC32.
constexpr uint64_t kPatchBytes = sizeof(uint32_t);

// Offsets by output, rising; of outputs that have any.
using Patches = std::unordered_map<OutputId, std::vector<uint64_t>>;

// Of the outputs that `are_wanted`.
Patches patches_of(const CopyPlan& plan, const std::function<bool(OutputId)>& are_wanted);

// The CRC32 of bytes of an output from `offset` on, with zeros where `patches` (rising offsets)
// are.
uint32_t crc32_unpatched(std::span<const uint64_t> patches, uint64_t offset,
                         std::span<const std::byte> bytes);

}  // namespace dsckpt
