// Bytes that are read by position: a part of a file, or memory.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <vector>

#include "base/bytes.h"
#include "base/error.h"
#include "io/input_file.h"

namespace dsckpt {

// A view: what it lies in must outlive it. Copy it freely.
class ByteSource {
 public:
  explicit ByteSource(const InputFile& file) : file_(&file), size_(file.size()) {}
  explicit ByteSource(ByteSpan memory) : memory_(memory), size_(memory.size()) {}

  uint64_t size() const { return size_; }

  // The bytes from `offset` on, at most `size` of them: fewer where the source ends. Throws IoError
  // as InputFile does.
  std::vector<std::byte> read(uint64_t offset, uint64_t size) const {
    if (offset >= size_) return {};
    size = std::min(size, size_ - offset);
    if (file_ != nullptr) return file_->read(begin_ + offset, size);
    const ByteSpan part = memory_.subspan(static_cast<size_t>(offset), static_cast<size_t>(size));
    return {part.begin(), part.end()};
  }

  // The bytes from `offset` on; nothing if it lies behind the end.
  ByteSource from(uint64_t offset) const { return part(offset, size_); }
  // At most `size` bytes from `offset` on.
  ByteSource part(uint64_t offset, uint64_t size) const {
    ByteSource out = *this;
    offset = std::min(offset, size_);
    out.size_ = std::min(size, size_ - offset);
    if (file_ != nullptr) {
      out.begin_ += offset;
    } else {
      out.memory_ = memory_.subspan(static_cast<size_t>(offset), static_cast<size_t>(out.size_));
    }
    return out;
  }

 private:
  const InputFile* file_ = nullptr;
  ByteSpan memory_;
  uint64_t begin_ = 0;
  uint64_t size_ = 0;
};

}  // namespace dsckpt
