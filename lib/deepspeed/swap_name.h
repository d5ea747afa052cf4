// The names of swap files, in which an optimizer that is offloaded to NVMe keeps its sub-groups.
//
// Source: deepspeed/runtime/swap_tensor/optimizer_utils.py (OptimizerStateSwapInfo), and stage3.py,
// which gives a sub-group's tensors their attribute ds_id.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

namespace dsckpt {

// The numbers of the first and the last parameter of a sub-group: "FIRST_LAST", the ds_id of its
// master.
struct SubGroupId {
  uint64_t first = 0;
  uint64_t last = 0;

  // Throws CorruptError for whatever to_string() does not write.
  static SubGroupId parse(const std::string& ds_id);
  std::string to_string() const;

  bool operator==(const SubGroupId&) const = default;
};

// The file of the tensor `ds_id` of a global rank, below the folder of all of them:
// "rank03/exp_avg-0_7.tensor.swp". Throws CorruptError if it would not lie in that rank's folder.
std::filesystem::path swap_file_name(uint64_t rank, const std::string& ds_id);

}  // namespace dsckpt
