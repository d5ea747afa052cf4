#include "inspect/memory_estimate.h"

#include <algorithm>
#include <limits>

#include "base/bytes.h"
#include "deepspeed/run_config.h"

namespace dsckpt {
namespace {

constexpr double kBufferFactor = 1.5;  // additional_buffer_factor

// Python's int() of a float, limited to 64 bits.
uint64_t truncated(double value) {
  constexpr double kEnd = 18446744073709551616.0;  // 2^64
  return value < kEnd ? static_cast<uint64_t>(value) : std::numeric_limits<uint64_t>::max();
}

uint64_t sum(double a, double b) {
  uint64_t bytes = truncated(a);
  add_saturating(bytes, truncated(b));
  return bytes;
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
  return {
      {0, "none", truncated(16 * p), 0, "16 P", ""},
      {1, "none", truncated(4 * p + 12 * p / gpus), 0, "4 P + 12 P / N", ""},
      {2, "none", sum(2 * p, 18 * p / gpus), truncated(p * 4 * per_node * kBufferFactor),
       "2 P + 18 P / N", "4 P M x 1.5"},
      {2, "optimizer", truncated(2 * p), truncated(p * std::max(4 * gpus, 16.0) * kBufferFactor),
       "2 P", "max(4 N, 16) P x 1.5"},
      {3, "none", sum(layer_bytes, 18 * p / gpus), truncated(layer * 4 * per_node * kBufferFactor),
       "4 L + 18 P / N", "4 L M x 1.5"},
      {3, "optimizer", sum(layer_bytes, 2 * p / gpus), truncated(p * 16 * share * kBufferFactor),
       "4 L + 2 P / N", "16 P / nodes x 1.5"},
      {3, "optimizer and parameters", truncated(layer_bytes),
       truncated(p * 18 * share * kBufferFactor), "4 L", "18 P / nodes x 1.5"},
  };
}

bool is_of_run(const MemoryEstimate& estimate, const Checkpoint& checkpoint) {
  const CheckpointFacts& facts = checkpoint.facts();
  if (facts.is_foreign() || facts.from_weights() || facts.zero_stage != estimate.stage)
    return false;
  const RunConfig& config = checkpoint.run_config();
  if (!config.engine) return false;
  const std::string offload = config.engine->offload_optimizer == OffloadDevice::none ? "none"
                              : config.offloads_params ? "optimizer and parameters"
                                                       : "optimizer";
  return offload == estimate.offload;
}

}  // namespace dsckpt
