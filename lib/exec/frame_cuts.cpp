#include "exec/frame_cuts.h"

#include <algorithm>
#include <array>

namespace dsckpt {
namespace {

using namespace std::string_view_literals;

constexpr std::array kPackable = {".pt"sv, ".pth"sv, ".bin"sv, ".safetensors"sv, ".swp"sv};
// Less than this of one type has no frame of its own.
constexpr uint64_t kLeastOfOneType = 4096;

struct Region {
  uint64_t begin;
  uint64_t end;
  PlaneLayout layout;
};

void append(std::vector<Region>& regions, const Region& next) {
  if (!regions.empty() && regions.back().layout == next.layout) {
    regions.back().end = next.end;
  } else {
    regions.push_back(next);
  }
}

std::vector<Region> regions_of(const CopyPlan& plan, OutputId out) {
  const auto first = std::partition_point(plan.items().begin(), plan.items().end(),
                                          [&](const CopyItem& item) { return item.out < out; });
  std::vector<Region> typed;
  for (auto item = first; item != plan.items().end() && item->out == out; ++item) {
    append(typed, {item->dst, item->dst_end(), plane_layout_of(item->to)});
  }
  std::vector<Region> regions;
  for (Region region : typed) {
    if (region.end - region.begin < kLeastOfOneType) region.layout = {};
    append(regions, region);
  }
  return regions;
}

}  // namespace

bool is_packable(std::string_view path) {
  return std::any_of(kPackable.begin(), kPackable.end(),
                     [&](std::string_view ending) { return path.ends_with(ending); });
}

std::vector<FrameCut> cut_into_frames(const CopyPlan& plan, OutputId out,
                                      std::span<const uint64_t> patches) {
  std::vector<FrameCut> cuts;
  for (const Region& region : regions_of(plan, out)) {
    const uint64_t width = region.layout.width;
    uint64_t begin = region.begin;
    while (begin < region.end) {
      // Between two elements, and where units of the executor end, too.
      const uint64_t next = (begin / kFrameBytes + 1) * kFrameBytes;
      uint64_t end = region.begin + (next - region.begin) / width * width;
      if (end <= begin) end = begin + width;
      end = std::min(end, region.end);
      cuts.push_back({begin, end - begin, region.layout, false});
      begin = end;
    }
  }
  for (const uint64_t patch : patches) {
    auto cut = std::partition_point(cuts.begin(), cuts.end(),
                                    [&](const FrameCut& c) { return c.end() <= patch; });
    for (; cut != cuts.end() && cut->begin < patch + sizeof(uint32_t); ++cut) {
      cut->patched = true;
    }
  }
  return cuts;
}

}  // namespace dsckpt
