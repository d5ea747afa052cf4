// Patches: the places in outputs where digests go (Digest::patches), and the threads that write
// them.
//
// A byte of an output is written with its final value, or not at all. A unit with a place is
// written around it, unless its writer knows the digest by then. The thread that learns the digest
// later writes the place. So a suspended process may wake after others have done its work and
// committed: it only writes bytes that are already there.
//
// The cut of the plan into units alone decides which of the two happens. So ranks, and a resumed
// run, agree about it.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <unordered_map>
#include <vector>

#include "exec/sink.h"
#include "exec/units.h"
#include "plan/copy_plan.h"

namespace dsckpt {

// A digest is a CRC32, little-endian.
using PatchBytes = std::array<std::byte, sizeof(uint32_t)>;
constexpr uint64_t kPatchBytes = sizeof(PatchBytes);
PatchBytes patch_bytes(uint32_t crc);

// Offsets by output, rising; only of outputs that have any.
using Patches = std::unordered_map<OutputId, std::vector<uint64_t>>;
Patches patches_of(const CopyPlan& plan);

// True if the writer of `unit`, one of `units`, knows the digest. The thread of its batch has then
// read the digest's whole range, or the range is empty.
bool is_known(const Units& units, const Digest& digest, const PlanUnit& unit);

// Writes `crc` to the places that the writers of units left out, as far as they are in `cut`.
// `units` are those of the whole plan, or of that part of it.
void write_left_out(const Units& units, const Digest& digest, uint32_t crc, Sink& sink,
                    const OutputCut& cut = {});

}  // namespace dsckpt
