// DcpWriter: the files of one checkpoint of torch.distributed.checkpoint, as part of a plan.
//
//   __RANK_0.distcp   archives as torch.save writes them, one after the other: a chunk of a tensor
//                     or a value each
//   .metadata         which keys there are, and where each lies (format/dcp_metadata.h)
//
// Source: torch/distributed/checkpoint/filesystem.py (FileSystemWriter), default_planner.py.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "format/dcp_metadata.h"
#include "format/torch_archive.h"
#include "plan/copy_plan.h"
#include "plan/tensor_source.h"

namespace dsckpt {

class DcpWriter {
 public:
  // `folder` is relative to the output; "" is the output itself. `ranks` is above 0. `input_bytes`:
  // the size of the input for all values.
  DcpWriter(std::string folder, uint32_t ranks, uint64_t input_bytes);

  enum class Cut : uint8_t {
    rows,   // over the ranks
    whole,  // into rank 0's file
  };
  // Add a value, in the order of the files. A value with several keys is stored once. They throw
  // UnsupportedError if keys and values become far larger than the input. (Parameters and options
  // can be shared.)
  void add_tensor(std::vector<DcpPath> keys, TensorSource tensor, Cut cut);
  // torch.tensor(number, dtype=torch.float32)
  void add_float(std::vector<DcpPath> keys, float number);
  // Any other value, in its pickled form.
  void add_value(std::vector<DcpPath> keys, TorchArchiveWriter::Written value);

  // One line for each tensor.
  struct Tensor {
    std::string key;
    DType dtype;
    Shape shape;
    size_t chunks = 0;
  };
  struct Contents {
    std::vector<Tensor> tensors;
    uint64_t keys = 0;
    uint64_t chunks = 0;  // values count too
    uint64_t metadata_bytes = 0;
    uint64_t least_chunk_bytes = 0;
  };
  // Adds the outputs, `.metadata` last. Throws InconsistentError for a repeated key.
  Contents lay_out(PlanBuilder& plan) &&;

 private:
  struct Entry {
    std::vector<DcpPath> keys;
    DcpTensor tensor = {};                  // if it is a tensor; its chunks come with the layout
    std::vector<TensorSource> source = {};  // none or one: its elements
    Cut cut = Cut::whole;
    bool is_tensor = false;
    std::string archive = {};  // the whole archive of an object without a source
  };
  class Layout;

  void add(Entry entry);

  std::string folder_;
  uint32_t ranks_;
  uint64_t bytes_ = 0;  // of keys and values, about
  uint64_t most_bytes_;
  std::vector<Entry> entries_;
};

}  // namespace dsckpt
