#include "exec/patches.h"

#include <algorithm>

#include "base/bytes.h"

namespace dsckpt {

PatchBytes patch_bytes(uint32_t crc) {
  PatchBytes bytes;
  store_le(bytes.data(), crc);
  return bytes;
}

Patches patches_of(const CopyPlan& plan) {
  Patches patches;
  for (const Digest& digest : plan.digests()) {
    std::vector<uint64_t>& places = patches[digest.out];
    places.insert(places.end(), digest.patches.begin(), digest.patches.end());
  }
  for (auto& [out, places] : patches) std::sort(places.begin(), places.end());
  return patches;
}

bool is_known(const Units& units, const Digest& digest, const PlanUnit& unit) {
  if (digest.begin == digest.end) return true;
  return units.first_of_batch(unit).begin <= digest.begin && digest.end <= unit.end;
}

void write_left_out(const Units& units, const Digest& digest, uint32_t crc, Sink& sink,
                    const OutputCut& cut) {
  const PatchBytes bytes = patch_bytes(crc);
  for (const uint64_t patch : digest.patches) {
    // It may lie across the end of a unit.
    const uint64_t last = std::min(patch + kPatchBytes, cut.end);
    for (uint64_t at = std::max(patch, cut.begin); at < last;) {
      const PlanUnit& unit = units.with(digest.out, at);
      const uint64_t end = std::min(last, unit.end);
      if (!is_known(units, digest, unit)) {
        sink.write_at(digest.out, at, std::span(bytes).subspan(at - patch, end - at));
      }
      at = end;
    }
  }
}

}  // namespace dsckpt
