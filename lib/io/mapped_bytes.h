// MappedBytes: a vector of bytes that, if it is long, returns its memory to the system when it is
// destroyed. malloc would keep such memory for each thread that freed it.
#pragma once

#include <sys/mman.h>

#include <cstddef>
#include <new>
#include <vector>

namespace dsckpt {

template <typename T>
struct MappingAllocator {
  using value_type = T;
  static constexpr size_t kShortest = size_t{1} << 20;  // bytes; malloc has what is shorter

  T* allocate(size_t count) {
    const size_t size = count * sizeof(T);
    if (size < kShortest) return static_cast<T*>(::operator new(size));
    void* const got =
        ::mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (got == MAP_FAILED) throw std::bad_alloc();
    return static_cast<T*>(got);
  }
  void deallocate(T* begin, size_t count) noexcept {
    const size_t size = count * sizeof(T);
    if (size < kShortest) return ::operator delete(begin);
    ::munmap(begin, size);
  }
  bool operator==(const MappingAllocator&) const = default;
};

using MappedBytes = std::vector<std::byte, MappingAllocator<std::byte>>;

}  // namespace dsckpt
