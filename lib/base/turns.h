// Turns: a counter shared by threads. Each takes the next number, until all are taken or a thread
// fails.
#pragma once

#include <atomic>
#include <cstddef>

namespace dsckpt {

class Turns {
 public:
  // Counts from 0 to `count` - 1.
  explicit Turns(size_t count) : count_(count) {}

  // Calls `work` with each number that no other thread has taken. An exception of `work` leaves
  // take(), and then no thread takes another number. Any thread.
  template <typename Work>
  void take(Work&& work) {
    try {
      for (size_t number; (number = next_++) < count_ && !failed_;) work(number);
    } catch (...) {
      failed_ = true;
      throw;
    }
  }

 private:
  const size_t count_;
  std::atomic<size_t> next_{0};
  std::atomic<bool> failed_{false};
};

}  // namespace dsckpt
