// Patches: the places in outputs where digests go (Digest::patches), and who writes them.
//
// A byte of an output is written as it is to be, or not at all. A unit that has a place is written
// around it, unless its writer knows the digest by then; whoever comes to know it later writes what
// is left out. So a process that was suspended while others did its work, and goes on when they
// have committed, writes what is there already.
//
// Which of the two it is follows from how the plan is cut into units, and from nothing else. So
// ranks, and a run that goes on with another one, agree about it.
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

// Offsets by output, rising; of outputs that have any.
using Patches = std::unordered_map<OutputId, std::vector<uint64_t>>;
Patches patches_of(const CopyPlan& plan);

// Whether the writer of `unit`, one of `units`, knows the digest: the thread that takes a batch has
// read all of the digest's range, or there is nothing in it.
bool is_known(const Units& units, const Digest& digest, const PlanUnit& unit);

// Writes `crc` where the writers of units have left it out. `units`: of the whole plan.
void write_left_out(const Units& units, const Digest& digest, uint32_t crc, Sink& sink);

}  // namespace dsckpt
