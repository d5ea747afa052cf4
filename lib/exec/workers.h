// Workers: threads that all do the same, as many as the user asked for.
#pragma once

#include <cstddef>
#include <functional>

namespace dsckpt {

// The number of threads that can run at once.
unsigned cores();

// One for each core, and four at least: some wait for the disk while others compute. For far files,
// as many as their readers take requests at once.
unsigned default_threads();

// Calls `work` once, with that many threads for oneTBB's algorithms (0: default_threads()).
// Concurrent calls that together ask for more threads than cores each get the smallest number that
// any asks for. Throws IoError if so many threads cannot be started.
void with_threads(unsigned threads, const std::function<void()>& work);

// Calls `work` on that many threads at once (0: default_threads()) and returns when all are done.
// Throws the exception of one of them; the others should then stop by themselves.
void run_workers(unsigned threads, const std::function<void()>& work);
// Calls `work` with each number below `count`, on at most that many threads. Throws the exception
// of one call, after which no other call began.
void run_for_each(unsigned threads, size_t count, const std::function<void(size_t)>& work);

}  // namespace dsckpt
