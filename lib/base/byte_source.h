// Bytes that are read by position, from memory or through a function: a part of a file, say.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <utility>
#include <vector>

#include "base/bytes.h"

namespace dsckpt {

// A view: the memory or function behind it must outlive it. Cheap to copy. Any thread, if the
// function may be called there.
class ByteSource {
 public:
  // Returns all bytes [offset, offset + size), which lie inside. Throws if they cannot be read.
  using Read = std::function<std::vector<std::byte>(uint64_t offset, uint64_t size)>;

  explicit ByteSource(ByteSpan memory) : memory_(memory), size_(memory.size()) {}
  ByteSource(uint64_t size, Read read) : read_(std::move(read)), size_(size) {}

  uint64_t size() const { return size_; }

  // At most `size` bytes from `offset` on: fewer where the source ends. Throws the errors of its
  // function.
  std::vector<std::byte> read(uint64_t offset, uint64_t size) const {
    if (offset >= size_) return {};
    size = std::min(size, size_ - offset);
    if (read_) return read_(begin_ + offset, size);
    const ByteSpan part =
        memory_.subspan(static_cast<size_t>(begin_ + offset), static_cast<size_t>(size));
    return {part.begin(), part.end()};
  }

  // The bytes from `offset` on; none if it lies behind the end.
  ByteSource from(uint64_t offset) const { return part(offset, size_); }
  // At most `size` bytes from `offset` on.
  ByteSource part(uint64_t offset, uint64_t size) const {
    ByteSource out = *this;
    offset = std::min(offset, size_);
    out.begin_ += offset;
    out.size_ = std::min(size, size_ - offset);
    return out;
  }

 private:
  Read read_;  // empty: memory
  ByteSpan memory_;
  uint64_t begin_ = 0;  // of the view
  uint64_t size_ = 0;
};

}  // namespace dsckpt
