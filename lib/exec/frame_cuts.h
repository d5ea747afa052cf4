// Which frames a packed output is made of: decided by the plan alone.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "codec/planes.h"
#include "plan/copy_plan.h"

namespace dsckpt {

// Whether an output of this name is packed where outputs are: the files of tensors. What people
// and frameworks read as it is (JSON, `latest`, scripts) is not.
bool is_packable(std::string_view path);

// A frame of `size` bytes of content from `begin` on.
struct FrameCut {
  uint64_t begin = 0;
  uint64_t size = 0;
  PlaneLayout layout;
  // A digest is patched in when all else is written, so the frame is stored behind all others.
  bool patched = false;

  uint64_t end() const { return begin + size; }
};

// Content in a frame: cut at multiples of this, and where the type of the elements changes. Tensors
// of a few KiB share frames of plain bytes.
inline constexpr uint64_t kFrameBytes = 1 << 20;

// In the order of the content, which they tile. `patches`: of the output's digests.
std::vector<FrameCut> cut_into_frames(const CopyPlan& plan, OutputId out,
                                      std::span<const uint64_t> patches);

}  // namespace dsckpt
