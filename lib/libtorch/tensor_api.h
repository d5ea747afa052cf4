// Checkpoints as at::Tensor: the library's public face for programs that use LibTorch.
//
// A target of its own, dsckpt_torch: loading LibTorch takes a third of a second and 100 MB, which
// no command-line tool should pay.
#pragma once

#include <ATen/core/TensorBody.h>

#include <filesystem>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "checkpoint/checkpoint.h"

namespace dsckpt {

// A checkpoint, opened for its tensors. Any thread. Tensors may outlive it.
class TensorReader {
 public:
  // Throws what Checkpoint::open throws.
  static TensorReader open(const std::filesystem::path& path, const OpenOptions& options = {});
  TensorReader(TensorReader&&) noexcept;
  TensorReader& operator=(TensorReader&&) noexcept;
  ~TensorReader();

  const Checkpoint& checkpoint() const;
  // The names of the state_dict, aliases included, in the order of DeepSpeed's zero_to_fp32.
  std::vector<std::string> names() const;

  // The tensor called `name`, as Param::weight describes it: fp32 for what was trained, else as
  // stored. If its elements lie in one file as torch can view them, the tensor is a view of that
  // file's mapping and nothing is read now; writing to it changes the process's own copy of the
  // pages. Else it is gathered into memory of its own. Throws UsageError for an unknown name, and
  // what reading throws.
  at::Tensor tensor(std::string_view name) const;

 private:
  struct Impl;
  explicit TensorReader(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace dsckpt
