// operator new by mimalloc that can throw. mimalloc's own, compiled as C, ends the process if
// memory runs out.
#include <mimalloc.h>

#include <new>

namespace {

void* or_throw(void* memory) {
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}

}  // namespace

void* operator new(std::size_t size) {
  return or_throw(mi_malloc(size));
}

void* operator new[](std::size_t size) {
  return or_throw(mi_malloc(size));
}

void* operator new(std::size_t size, std::align_val_t alignment) {
  return or_throw(mi_malloc_aligned(size, static_cast<std::size_t>(alignment)));
}

void* operator new[](std::size_t size, std::align_val_t alignment) {
  return or_throw(mi_malloc_aligned(size, static_cast<std::size_t>(alignment)));
}
