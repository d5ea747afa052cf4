#include "exec/patches.h"

#include <algorithm>
#include <array>

#include "base/kernels.h"

namespace dsckpt {

Patches patches_of(const CopyPlan& plan, const std::function<bool(OutputId)>& are_wanted) {
  Patches patches;
  for (const Digest& digest : plan.digests()) {
    if (!are_wanted(digest.out)) continue;
    std::vector<uint64_t>& places = patches[digest.out];
    places.insert(places.end(), digest.patches.begin(), digest.patches.end());
  }
  for (auto& [out, places] : patches) std::sort(places.begin(), places.end());
  return patches;
}

uint32_t crc32_unpatched(std::span<const uint64_t> patches, uint64_t offset,
                         std::span<const std::byte> bytes) {
  const uint64_t end = offset + bytes.size();
  constexpr std::array<std::byte, kPatchBytes> kZeros{};
  uint32_t crc = 0;
  uint64_t at = offset;
  // The first patch that ends behind `offset`.
  auto patch = std::partition_point(patches.begin(), patches.end(),
                                    [&](uint64_t begin) { return begin + kPatchBytes <= offset; });
  for (; patch != patches.end() && *patch < end; ++patch) {
    const uint64_t begin = std::max(*patch, at);
    const uint64_t stop = std::min(*patch + kPatchBytes, end);
    crc = crc32(crc, bytes.subspan(at - offset, begin - at));
    crc = crc32(crc, std::span(kZeros).first(stop - begin));
    at = stop;
  }
  return crc32(crc, bytes.subspan(at - offset));
}

}  // namespace dsckpt
