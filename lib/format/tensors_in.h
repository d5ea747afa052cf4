// Finds the tensors of a pickle, at any depth.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "pickle/pickle.h"

namespace dsckpt {

struct FoundTensor {
  // Keys and indices from the root, with dots between them: "optimizer_state_dict.state.0.exp_avg".
  // "" if the root itself is the tensor.
  std::string path;
  pickle::Value value;    // TorchArchive::is_tensor
  bool is_piece = false;  // a tensor that an OpaqueTensor is made of
};

// A value that is made of tensors by a call, or as torch rebuilds a tensor, but is not read. These
// are quantised, sparse and nested tensors, subclasses such as torchao's, and one rank's DTensor or
// ShardedTensor. Only that call knows its values.
struct OpaqueTensor {
  std::string path;
  // The class if the pickle has it, else the function: "torch._utils._rebuild_qtensor".
  std::string kind;
};

struct FoundTensors {
  std::vector<FoundTensor> tensors;  // also the pieces of the opaque ones
  std::vector<OpaqueTensor> opaque;
};

// The size of the names of a file's tensors. A pickle stores a part once that many names begin
// with.
class NamesSize {
 public:
  // Throws UnsupportedError if the names take more than 16 MiB, and more than a kilobyte each.
  void add(std::string_view name);

 private:
  uint64_t bytes_ = 0;
  uint64_t names_ = 0;
};

// Every tensor in the dicts, lists, tuples, sets and the state and items of objects below `root`,
// in the order of the pickle. A container that occurs again is not entered again. So this ends for
// any document, in time linear in its size. Keys other than texts, integers and tuples of these
// appear as "<kind>", so paths may be equal. Throws as NamesSize.
std::vector<FoundTensor> tensors_in(const pickle::Value& root);

// The same, with the tensors that are not read. Containers, and objects with attributes, do not
// count as such.
FoundTensors find_tensors(const pickle::Value& root);

}  // namespace dsckpt
