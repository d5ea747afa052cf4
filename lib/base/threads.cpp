#include "base/threads.h"

#include <new>

namespace dsckpt {

StartedThreads start_threads(size_t count, size_t stack_bytes, void* (*run)(void*), void* of) {
  StartedThreads started;
  started.threads.reserve(count);
  pthread_attr_t attributes;
  if (::pthread_attr_init(&attributes) != 0) throw std::bad_alloc();
  ::pthread_attr_setstacksize(&attributes, stack_bytes);
  while (started.threads.size() < count && started.failed == 0) {
    pthread_t thread{};
    started.failed = ::pthread_create(&thread, &attributes, run, of);
    if (started.failed == 0) started.threads.push_back(thread);
  }
  ::pthread_attr_destroy(&attributes);
  return started;
}

}  // namespace dsckpt
