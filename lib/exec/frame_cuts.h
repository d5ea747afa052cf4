// Cuts a packed output into frames, as the plan alone decides.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "codec/planes.h"
#include "plan/copy_plan.h"

namespace dsckpt {

// True if an output of this name is packed in packed outputs: the files of tensors. Files that
// people and frameworks read directly (JSON, `latest`, scripts) are not.
bool is_packable(std::string_view path);

// A frame of `size` bytes of content from `begin` on.
struct FrameCut {
  uint64_t begin = 0;
  uint64_t size = 0;
  PlaneLayout layout;
  // A digest is patched in after everything else, so the frame is stored behind all others.
  bool patched = false;

  uint64_t end() const { return begin + size; }
};

// Content in a frame: cut at multiples of this, and where the element type changes. Tensors of a
// few KiB share frames of plain bytes.
inline constexpr uint64_t kFrameBytes = 1 << 20;

// In the order of the content, which they tile. `patches` are those of the output's digests.
std::vector<FrameCut> cut_into_frames(const CopyPlan& plan, OutputId out,
                                      std::span<const uint64_t> patches);

}  // namespace dsckpt
