// Threads with stacks of a given size.
#pragma once

#include <pthread.h>

#include <cstddef>
#include <vector>

namespace dsckpt {

struct StartedThreads {
  std::vector<pthread_t> threads;
  int failed = 0;  // what kept the next one from starting, as errno; 0 if all have
};

// Starts up to `count` threads that call `run(of)`, as many as can be had. The caller joins them.
// Throws std::bad_alloc before the first has started.
StartedThreads start_threads(size_t count, size_t stack_bytes, void* (*run)(void*), void* of);

}  // namespace dsckpt
