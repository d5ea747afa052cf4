#include "io/read_limit.h"

namespace dsckpt {
namespace {

std::atomic<RateLimit*> current_read_limit{nullptr};

}  // namespace

ReadLimit::ReadLimit(uint64_t bytes_per_second, const std::atomic<bool>& cancelled)
    : rate_(bytes_per_second, cancelled) {
  current_read_limit = &rate_;
}

ReadLimit::~ReadLimit() {
  current_read_limit = nullptr;
}

void ReadLimit::take(uint64_t bytes) {
  if (RateLimit* limit = current_read_limit) limit->take(bytes);
}

}  // namespace dsckpt
