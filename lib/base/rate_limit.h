// RateLimit: slows a run down, so that it leaves a shared disk to others.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <mutex>

namespace dsckpt {

class RateLimit {
 public:
  // 0: no limit. `cancelled` ends every wait.
  RateLimit(uint64_t bytes_per_second, const std::atomic<bool>& cancelled)
      : rate_(bytes_per_second), cancelled_(cancelled) {}

  uint64_t rate() const { return rate_; }

  // Waits until `bytes` may move. Together, all threads exceed the rate by no more than the last
  // call's bytes. Any thread.
  void take(uint64_t bytes);

 private:
  using Clock = std::chrono::steady_clock;
  const uint64_t rate_;
  const std::atomic<bool>& cancelled_;
  std::mutex mutex_;
  Clock::time_point next_ = {};  // when the next bytes may move
};

}  // namespace dsckpt
