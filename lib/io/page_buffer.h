// A buffer for direct I/O: it begins at a page, on huge pages if it is large.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace dsckpt {

class PageBuffer {
 public:
  // Its bytes are zero and take no memory until they are written. Throws std::bad_alloc.
  explicit PageBuffer(uint64_t size);
  ~PageBuffer();
  PageBuffer(const PageBuffer&) = delete;
  PageBuffer& operator=(const PageBuffer&) = delete;

  std::span<std::byte> bytes() const { return bytes_; }

 private:
  std::span<std::byte> mapping_;
  std::span<std::byte> bytes_;  // of the mapping, from a page on
};

}  // namespace dsckpt
