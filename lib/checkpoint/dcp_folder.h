// Folders that torch.distributed.checkpoint (DCP) wrote.
#pragma once

#include <filesystem>
#include <string_view>
#include <vector>

namespace dsckpt {

// Accelerate's folders are called that, and a number: accelerate/utils/constants.py
// FSDP_MODEL_NAME, OPTIMIZER_NAME.
inline constexpr std::string_view kAccelerateModel = "pytorch_model_fsdp_";
inline constexpr std::string_view kAccelerateOptimizer = "optimizer_";

struct DcpFolder {
  std::filesystem::path path;
  // The files that say what there is, the model's first; empty if this is no such folder.
  std::vector<std::filesystem::path> metadata = {};
};

// What `folder` is: one with a `.metadata` that is a pickle (others have texts of that name); or
// the one above Accelerate's `pytorch_model_fsdp_0`, with the optimizer in `optimizer_0` beside it.
// Of either of these two it is the one above, too. Throws InconsistentError where several models
// are there.
DcpFolder dcp_folder(const std::filesystem::path& folder);

// Whether dcp_folder() finds anything. Nothing is thrown.
bool is_dcp_folder(const std::filesystem::path& folder);
// Its files of tensors of that, packed or not, by their names, whatever else it has or lacks. Empty
// if it cannot be listed.
std::vector<std::filesystem::path> dcp_data_files(const std::filesystem::path& folder);

// Whether a file of such a folder is called like that: `.metadata`, `__0_0.distcp`.
bool is_dcp_name(std::string_view file_name);

}  // namespace dsckpt
