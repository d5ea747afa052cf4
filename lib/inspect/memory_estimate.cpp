#include "inspect/memory_estimate.h"

#include <algorithm>

namespace dsckpt {
namespace {

constexpr double kBufferFactor = 1.5;  // additional_buffer_factor

// Python's int() of a float.
uint64_t truncated(double value) {
  return static_cast<uint64_t>(value);
}

}  // namespace

std::vector<MemoryEstimate> memory_estimates(int64_t params, int64_t largest_layer,
                                             const Hardware& hardware) {
  const auto p = static_cast<double>(params);
  const auto layer = static_cast<double>(largest_layer);
  const auto gpus = static_cast<double>(hardware.nodes * hardware.gpus_per_node);
  const auto per_node = static_cast<double>(hardware.gpus_per_node);
  const double share = 1 / static_cast<double>(hardware.nodes);
  const double layer_bytes = 4 * layer;
  const auto whole = [](double value) { return truncated(value); };
  return {
      {0, "none", whole(16 * p), 0, "16 P", ""},
      {1, "none", whole(4 * p + 12 * p / gpus), 0, "4 P + 12 P / N", ""},
      {2, "none", whole(2 * p) + whole(18 * p / gpus), whole(p * 4 * per_node * kBufferFactor),
       "2 P + 18 P / N", "4 P M x 1.5"},
      {2, "optimizer", whole(2 * p), whole(p * std::max(4 * gpus, 16.0) * kBufferFactor), "2 P",
       "max(4 N, 16) P x 1.5"},
      {3, "none", whole(layer_bytes) + whole(18 * p / gpus),
       whole(layer * 4 * per_node * kBufferFactor), "4 L + 18 P / N", "4 L M x 1.5"},
      {3, "optimizer", whole(layer_bytes) + whole(2 * p / gpus),
       whole(p * 16 * share * kBufferFactor), "4 L + 2 P / N", "16 P / nodes x 1.5"},
      {3, "optimizer and parameters", whole(layer_bytes), whole(p * 18 * share * kBufferFactor),
       "4 L", "18 P / nodes x 1.5"},
  };
}

}  // namespace dsckpt
