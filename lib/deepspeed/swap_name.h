// The names of swap files, which hold the sub-groups of an optimizer that is offloaded to NVMe.
//
// Source: deepspeed/runtime/swap_tensor/optimizer_utils.py (OptimizerStateSwapInfo), and stage3.py,
// which sets the attribute ds_id of a sub-group's tensors.
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

  // Throws CorruptError for any text that to_string() does not write.
  static SubGroupId parse(const std::string& ds_id);
  std::string to_string() const;

  bool operator==(const SubGroupId&) const = default;
};

// The file of the tensor `ds_id` of a global rank, relative to the swap folder of all ranks:
// "rank03/exp_avg-0_7.tensor.swp". Throws CorruptError if it would lie outside of that rank's
// folder.
std::filesystem::path swap_file_name(uint64_t rank, const std::string& ds_id);

}  // namespace dsckpt
