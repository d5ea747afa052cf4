#include "io/page_buffer.h"

#include <sys/mman.h>

#include <new>

namespace dsckpt {
namespace {

constexpr uint64_t kHugePage = 2 << 20;

}  // namespace

PageBuffer::PageBuffer(uint64_t size) {
  const bool huge = size >= kHugePage;
  const uint64_t whole = size + (huge ? kHugePage : 0);
  void* const got =
      ::mmap(nullptr, whole, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (got == MAP_FAILED) throw std::bad_alloc();
  mapping_ = {static_cast<std::byte*>(got), whole};
  const uint64_t past = reinterpret_cast<uintptr_t>(got) % kHugePage;
  bytes_ = mapping_.subspan(huge && past != 0 ? kHugePage - past : 0, size);
  // The end that does not fill a huge page stays in small pages. If the advice fails, only speed is
  // lost.
  if (huge) ::madvise(bytes_.data(), size / kHugePage * kHugePage, MADV_HUGEPAGE);
}

PageBuffer::~PageBuffer() {
  ::munmap(mapping_.data(), mapping_.size());
}

}  // namespace dsckpt
