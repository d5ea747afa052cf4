// The tensors of a pickle, found wherever they are.
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

// A value that a call makes, of tensors or as torch rebuilds a tensor, but none that is read:
// quantised, sparse and nested tensors, subclasses such as torchao's, a DTensor or ShardedTensor of
// one rank. Only that call knows its values.
struct OpaqueTensor {
  std::string path;
  // The class, where the pickle has it, or the function: "torch._utils._rebuild_qtensor".
  std::string kind;
};

struct FoundTensors {
  std::vector<FoundTensor> tensors;  // with the pieces of the others
  std::vector<OpaqueTensor> opaque;
};

// How much the names of a file's tensors take: a pickle has a part once that many names begin with.
class NamesSize {
 public:
  // Throws UnsupportedError if they take more than 16 MiB, and than a kilobyte each.
  void add(std::string_view name);

 private:
  uint64_t bytes_ = 0;
  uint64_t names_ = 0;
};

// Every tensor that `root` holds in dicts, lists, tuples, sets and the state and items of objects,
// in the order of the pickle. A container that comes again is not entered again, so this ends for
// any document, in time linear in its size. Keys that are neither text, integers
// nor tuples of these appear as "<kind>", so paths need not differ. Throws what NamesSize
// does.
std::vector<FoundTensor> tensors_in(const pickle::Value& root);

// The same, with what is a tensor but not read. A container, or an object with attributes, is none.
FoundTensors find_tensors(const pickle::Value& root);

}  // namespace dsckpt
