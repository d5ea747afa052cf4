// safetensors: eight bytes of header length, a JSON header, the tensors.
//
// Reader and writer follow the format's README and safetensors/src/tensor.rs. The writer's bytes
// are those of Python's safetensors.torch.save_file for the same tensors and metadata. Only the
// metadata's keys are sorted; Python's order is random for more than one key.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "dsckpt/dtype.h"
#include "io/input_file.h"
#include "plan/copy_plan.h"
#include "plan/tensor_source.h"

namespace dsckpt {

struct SafetensorsEntry {
  std::string name;
  DType dtype = DType::float32;
  Shape shape;
  Extent extent;  // absolute in the file
};

// An open safetensors file: its header is read and checked, nothing else. Immutable.
//
// open() throws CorruptError for everything that tensor.rs refuses. The header must be a JSON
// object, and no longer than 100 MB or the file. Unknown dtypes, sizes that do not match shapes,
// overlaps, holes, trailing bytes and duplicate names are refused. It throws UnsupportedError for
// dtypes of less than a byte.
class SafetensorsFile {
 public:
  static SafetensorsFile open(const InputFiles& files, FileId id);
  // True if the first bytes look like a safetensors header.
  static bool probe(const InputFile& file);

  // In file order.
  const std::vector<SafetensorsEntry>& entries() const { return entries_; }
  const std::map<std::string, std::string>& metadata() const { return metadata_; }
  TensorSource tensor(const SafetensorsEntry& entry) const;

 private:
  std::vector<SafetensorsEntry> entries_;
  std::map<std::string, std::string> metadata_;
};

struct NamedSource {
  std::string name;
  TensorSource source;
};

// Adds the output `path` to the plan. Throws UnsupportedError for a dtype that safetensors lacks,
// InconsistentError for duplicate names or the name "__metadata__".
OutputId lay_out_safetensors(PlanBuilder& plan, std::string path, std::vector<NamedSource> tensors,
                             const std::map<std::string, std::string>& metadata);

}  // namespace dsckpt
