// ReadLimit: slows down all reads of input files in this process, as long as it lives.
//
// Runs have limits of their own (RateLimit), which also count what they write. This one is for
// commands that read on many paths, such as `verify`.
#pragma once

#include <atomic>
#include <cstdint>

#include "base/rate_limit.h"

namespace dsckpt {

class ReadLimit {
 public:
  // Bytes a second, as they are stored; 0: no limit. `cancelled` ends every wait. One at a time,
  // made and destroyed while nobody reads.
  ReadLimit(uint64_t bytes_per_second, const std::atomic<bool>& cancelled);
  ~ReadLimit();
  ReadLimit(const ReadLimit&) = delete;
  ReadLimit& operator=(const ReadLimit&) = delete;

  // Called before each read. Any thread.
  static void take(uint64_t bytes);

 private:
  RateLimit rate_;
};

}  // namespace dsckpt
