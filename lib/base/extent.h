// Extent: a half-open range of bytes in one input file.
#pragma once

#include <cstdint>

namespace dsckpt {

// Index of a file in the InputFiles table it was opened through.
using FileId = uint32_t;
// Index of a file in a CopyPlan's outputs.
using OutputId = uint32_t;

struct Extent {
  FileId file = 0;
  uint64_t offset = 0;  // absolute, bytes
  uint64_t size = 0;    // bytes

  uint64_t end() const { return offset + size; }
  bool operator==(const Extent&) const = default;
};

}  // namespace dsckpt
