// Threads with stacks of a given size.
#pragma once

#include <pthread.h>

#include <cstddef>
#include <vector>

namespace dsckpt {

struct StartedThreads {
  std::vector<pthread_t> threads;
  int failed = 0;  // errno of the thread that did not start; 0 if all have started
};

// Starts up to `count` threads that call `run(of)`, or as many as the system allows. The caller
// joins them. Throws std::bad_alloc before the first has started.
StartedThreads start_threads(size_t count, size_t stack_bytes, void* (*run)(void*), void* of);

}  // namespace dsckpt
