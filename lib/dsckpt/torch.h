// Checkpoints as at::Tensor, for programs that use LibTorch. This is a library of its own,
// dsckpt_torch, because loading LibTorch takes a third of a second and 100 MB.
#pragma once

#include <ATen/core/TensorBody.h>

#include <filesystem>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "dsckpt/checkpoint.h"
#include "dsckpt/export.h"

namespace dsckpt {

// A source that is opened to read tensors. Any thread. Tensors may outlive it.
class DSCKPT_EXPORT TensorReader {
 public:
  // Throws what Source::open throws.
  static TensorReader open(const std::filesystem::path& path, const SourceOptions& options = {});
  explicit TensorReader(Source source);

  const Source& source() const { return source_; }
  // The names of the state_dict, aliases included, in the order of DeepSpeed's zero_to_fp32.
  std::vector<std::string> names() const;

  // The tensor called `name`, fp32 if it was trained, else of its stored type; or its optimizer
  // state `state`. If its elements lie in one file as torch can view them, the tensor is a view of
  // the mapped file. Nothing is read then, and writes only change the process's own copy of the
  // pages. Otherwise its elements are gathered into new memory. Throws UsageError for an unknown
  // name, and the errors of reading.
  at::Tensor tensor(std::string_view name, std::string_view state = {}) const;

 private:
  Source source_;
  std::vector<SourceTensor> tensors_;
  std::map<std::string, size_t> indices_;  // of "NAME" or "NAME STATE" in tensors_
};

}  // namespace dsckpt
