// Rows: a tensor's bytes in one file.
#pragma once

#include <cstdint>

#include "base/extent.h"

namespace dsckpt {

// Equally long pieces of a file, `stride` bytes apart. The user of the rows knows their number; the
// members with a count need one above 0.
struct Rows {
  FileId file = 0;
  uint64_t offset = 0;     // of the first row, bytes
  uint64_t row_bytes = 0;  // length of a row
  int64_t stride = 0;      // bytes from one row to the next; of a single row it means nothing

  uint64_t begin_of(uint64_t row) const { return offset + row * static_cast<uint64_t>(stride); }
  // From the first byte of the first row to the end of the last of `count` rows.
  Extent span(uint64_t count) const {
    return {file, offset, (count - 1) * static_cast<uint64_t>(stride) + row_bytes};
  }
  // True if the rows follow each other without a gap.
  bool contiguous() const { return stride == static_cast<int64_t>(row_bytes); }
  // True if `next` begins where the first row ends.
  bool is_continued_by(const Rows& next) const {
    return file == next.file && offset + row_bytes == next.offset;
  }
  bool operator==(const Rows&) const = default;
};

}  // namespace dsckpt
