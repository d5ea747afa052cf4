#include "exec/patches.h"

#include <algorithm>

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

}  // namespace dsckpt
