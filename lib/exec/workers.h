// Workers: as many threads as the user asked for, doing the same.
#pragma once

#include <cstddef>
#include <functional>

namespace dsckpt {

// As many threads as run at once.
unsigned cores();

// One a core, and four at least: some wait for the disk while others compute. Of far files as many
// as their readers take requests at once.
unsigned default_threads();

// Calls `work` once where oneTBB's algorithms have that many threads (0: default_threads()). Of
// several calls at once that ask for more threads than cores each gets as many as the most modest
// one asks for. Throws IoError if that many cannot be had.
void with_threads(unsigned threads, const std::function<void()>& work);

// Calls `work` on that many threads at once (0: default_threads()) and returns when all are done.
// Throws what one of them threw; the others should then stop by themselves.
void run_workers(unsigned threads, const std::function<void()>& work);
// Calls `work` with each number below `count`, on that many threads at most. Throws what one of
// them threw, after which no other call began.
void run_for_each(unsigned threads, size_t count, const std::function<void(size_t)>& work);

}  // namespace dsckpt
