// The places of an optimizer's parameters in ZeRO's layouts: arithmetic for readers and writers.
// checkpoint/LAYOUTS.md describes the layouts.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace dsckpt {

// The order in which round_robin_gradients lays out the `count` parameters of a group over `ranks`
// ranks. result[place] is the index at which the optimizer got the parameter (stage_1_and_2.py
// _round_robin_reorder).
std::vector<size_t> round_robin_order(size_t count, uint32_t ranks);

// A parameter group of stages 1 and 2 as one vector. Counts are elements.
struct FlatLayout {
  std::vector<uint64_t> begins;    // of each parameter
  std::vector<uint64_t> paddings;  // behind each parameter, for alignment
  uint64_t used = 0;               // up to the end of the last parameter
  uint64_t partition = 0;          // of each rank: the vector's length divided by the ranks
};

// Lays out parameters of `numels` elements for `ranks` ranks, each parameter but the first at a
// multiple of `alignment` (1: end to end). The length is rounded up to `unit` elements a rank.
// stage_1_and_2.py DeepSpeedZeroOptimizer.__init__, nccl_start_alignment_factor. Throws
// InconsistentError if the sizes overflow.
FlatLayout flat_layout(std::span<const uint64_t> numels, uint32_t ranks, uint64_t alignment = 1,
                       uint64_t unit = 2);

// The elements of a parameter of `numel` elements that each of `ranks` ranks has at stage 3. They
// include the padding of the last ranks. partition_parameters.py _aligned_size.
uint64_t piece_of(uint64_t numel, uint64_t ranks);

// The ends of the sub-groups of a parameter group at stage 3, as indices one past the last
// parameter. A sub-group is full when a rank's pieces reach `sub_group_size` elements. stage3.py
// _create_fp16_sub_groups. Empty for no parameters.
std::vector<size_t> sub_group_ends(std::span<const uint64_t> numels, uint32_t ranks,
                                   uint64_t sub_group_size);

}  // namespace dsckpt
