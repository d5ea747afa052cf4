// Estimates the result of packing from a sample.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "dsckpt/pack.h"

namespace dsckpt {

struct PackEstimate {
  struct Kind {
    std::string kind;      // an element type, "float32", or "other bytes"
    uint64_t bytes = 0;    // of all files
    uint64_t sampled = 0;  // bytes
    uint64_t sampled_stored = 0;

    double ratio() const;  // stored to content
  };
  std::vector<Kind> kinds;  // the largest first
  uint64_t bytes = 0;
  uint64_t files = 0;
  double seconds = 0;  // of the whole work on `threads`, with all in the page cache
  unsigned threads = 0;

  double stored() const;
};

// `job` is from plan_pack(). Compresses frames evenly spread over all packable files, about
// `sample_bytes` of them, on all threads. Throws the errors of reading, and InterruptedError.
PackEstimate estimate_pack(const Job& job, int level, uint64_t sample_bytes, Progress& progress,
                           unsigned threads);

}  // namespace dsckpt
