#include "base/rate_limit.h"

#include <algorithm>
#include <thread>

namespace dsckpt {
namespace {

// The longest time until a request to stop is heard.
constexpr std::chrono::milliseconds kNap{50};
// Longer than any wait, and within the range of a clock.
constexpr std::chrono::duration<double> kLongest = std::chrono::hours(24 * 365);

}  // namespace

void RateLimit::take(uint64_t bytes) {
  if (rate_ == 0) return;
  Clock::time_point turn;
  {
    const std::lock_guard lock(mutex_);
    turn = std::max(next_, Clock::now());
    const std::chrono::duration<double> time(static_cast<double>(bytes) /
                                             static_cast<double>(rate_));
    next_ = turn + std::chrono::duration_cast<Clock::duration>(std::min(time, kLongest));
  }
  for (Clock::time_point now; (now = Clock::now()) < turn && !cancelled_;) {
    std::this_thread::sleep_for(std::min<Clock::duration>(turn - now, kNap));
  }
}

}  // namespace dsckpt
