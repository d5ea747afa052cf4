// Estimates the memory that a run needs to resume from a checkpoint, by DeepSpeed's own formulas.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "checkpoint/checkpoint.h"

namespace dsckpt {

struct Hardware {
  uint64_t nodes = 1;
  uint64_t gpus_per_node = 1;
};

// For parameters, gradients and optimizer states of Adam in 16-bit training; activations and
// buffers come on top.
struct MemoryEstimate {
  int stage = 0;
  std::string offload;      // "none", "optimizer", "optimizer and parameters"
  uint64_t gpu_bytes = 0;   // per GPU
  uint64_t cpu_bytes = 0;   // per node
  std::string gpu_formula;  // with P parameters, L in the largest layer, N GPUs, M on a node
  std::string cpu_formula;  // "" where none was published
};

// Stages 0 and 1 follow the ZeRO paper (Rajbhandari et al., SC 2020, section 3.1 and figure 1).
// They take 16 bytes a parameter, and 4 + 12 / N. It has no offloading. Stage 2 follows
// estimate_zero2_model_states_mem_needs (stage_1_and_2.py), stage 3
// estimate_zero3_model_states_mem_needs (stage3.py). Both have zero_init and the factor of 1.5 for
// buffers. `largest_layer` is counted as in their model_to_params: parameters of one module,
// without those of its children.
std::vector<MemoryEstimate> memory_estimates(int64_t params, int64_t largest_layer,
                                             const Hardware& hardware);

// True if the run that saved the checkpoint had that stage and offloading, by the configuration in
// its files.
bool is_of_run(const MemoryEstimate& estimate, const Checkpoint& checkpoint);

}  // namespace dsckpt
