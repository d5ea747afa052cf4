// Swap files: the tensors that an NVMe-offloaded optimizer leaves out of its optimizer-states file.
//
// Stage 3 only. Large sub-groups are empty tensors in the file. Their raw elements are in
// TAG/offloaded_tensors/rankRR/ID.tensor.swp, where ID is the tensor's attribute ds_id. Layout:
// LAYOUTS.md, "NVMe offload"; source: deepspeed/runtime/swap_tensor/optimizer_utils.py, engine.py
// save_checkpoint.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "checkpoint/checkpoint.h"
#include "checkpoint/shard.h"
#include "deepspeed/run_config.h"
#include "dsckpt/dtype.h"
#include "io/input_file.h"
#include "plan/tensor_source.h"

namespace dsckpt {

// The contents that one sub-group of a rank must have.
struct SubGroupSize {
  uint64_t params = 0;
  uint64_t numel = 0;  // of this rank's pieces
};

// A flat tensor of a rank whose elements are in a swap file.
struct SwappedTensor {
  std::string member;          // where it is empty: "fp32_flat_groups[1]"
  std::filesystem::path path;  // of the swap file, which need not be there
  std::string display;
  uint64_t numel = 0;
  DType dtype = DType::float32;
  uint64_t most_bytes = 0;  // that the file can have, padding included
  bool is_state = false;    // not a master

  uint64_t bytes() const { return numel * size_of(dtype); }
};

// True if a tensor of the file is empty where elements are needed.
bool is_swapped_out(const TensorSource& flat, uint64_t needed);

// TAG/offloaded_tensors.
std::filesystem::path offload_folder(const std::filesystem::path& tag_folder);

// The tensors of one world that are in swap files, by rank: masters, then states. No file is
// touched. The `sizes` are those of each rank's sub-groups. `mp_ranks` is the number of worlds,
// which gives the global rank in the folder's name. Throws CorruptError for a ds_id that is missing
// or malformed. Throws InconsistentError for one that does not fit its sub-group, the other
// sub-groups, the masters or the other ranks. Odd but possible findings are added to `notes`.
std::vector<std::vector<SwappedTensor>> swapped_tensors(
    const std::vector<const Shard*>& optim, const std::vector<std::vector<SubGroupSize>>& sizes,
    uint32_t mp_ranks, const OffloadConfig& offload, std::vector<std::string>& notes);

// Throws InconsistentError unless the swap file has the bytes of the tensor and no more than its
// padding besides.
void check_swap_file(const InputFile& file, const SwappedTensor& tensor);

// One world's swap files, opened.
class SwapFiles {
 public:
  SwapFiles() = default;
  // Opens those of masters, and of states if asked for. Throws InconsistentError that lists all
  // files that are missing, or as check_swap_file().
  SwapFiles(InputFiles& inputs, const std::vector<const Shard*>& optim,
            const std::vector<std::vector<SwappedTensor>>& tensors, const OffloadConfig& offload,
            bool states);

  // The elements of the tensor `member` of rank `rank`; nullptr if they are not in a swap file.
  const TensorSource* find(size_t rank, const std::string& member) const;
  const std::vector<SwapFile>& files() const { return files_; }

 private:
  std::vector<std::map<std::string, TensorSource>> by_rank_;
  std::vector<SwapFile> files_;
};

// Files below `folder`, an offloaded_tensors folder, that are none of `known`. By path; empty if
// there is no such folder. Throws IoError.
std::vector<std::filesystem::path> unreferenced_swap_files(
    const std::filesystem::path& folder, const std::set<std::filesystem::path>& known);

}  // namespace dsckpt
