// How much memory a run needs to go on from a checkpoint, by DeepSpeed's own formulas.
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

// Stages 0 and 1 by the ZeRO paper (Rajbhandari et al., SC 2020, section 3.1 and figure 1: 16 bytes
// a parameter, and 4 + 12 / N), which has no offloading; stage 2 as
// estimate_zero2_model_states_mem_needs (stage_1_and_2.py) and stage 3 as
// estimate_zero3_model_states_mem_needs (stage3.py), with zero_init and their factor of 1.5 for
// buffers. `largest_layer` as their model_to_params counts it: parameters of one module, without
// those of its children.
std::vector<MemoryEstimate> memory_estimates(int64_t params, int64_t largest_layer,
                                             const Hardware& hardware);

// Whether the run that saved the checkpoint was of that stage and offloaded so, as its
// configuration in the files says.
bool is_of_run(const MemoryEstimate& estimate, const Checkpoint& checkpoint);

}  // namespace dsckpt
