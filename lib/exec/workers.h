// Workers: as many threads as the user asked for, doing the same.
#pragma once

#include <functional>

namespace dsckpt {

// Calls `work` that many times at once (0: as often as there are cores) and returns when all are
// done. Throws what one of them threw; the others should then stop by themselves. Of several calls at
// once that ask for more threads than cores each gets as many as the most modest one asks for.
void run_workers(unsigned threads, const std::function<void()>& work);

}  // namespace dsckpt
