// The tensors of a pickle, found wherever they are.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "pickle/pickle.h"

namespace dsckpt {

struct FoundTensor {
  // Keys and indices from the root, with dots between them: "optimizer_state_dict.state.0.exp_avg".
  // "" if the root itself is the tensor.
  std::string path;
  pickle::Value value;  // TorchArchive::is_tensor
};

// A pickle has a name once that comes in the paths of many tensors.
inline constexpr size_t kMaxNameBytes = 4096;
// Throws UnsupportedError for a longer one.
void check_name(std::string_view name);

// Every tensor that `root` holds in dicts, lists, tuples, sets and the state and items of objects,
// in the order of the pickle. A container that comes again is not entered again, so this ends for
// any document, in time linear in its size. Keys that are neither text, integers
// nor tuples of these appear as "<kind>", so paths need not differ. Throws what check_name()
// throws.
std::vector<FoundTensor> tensors_in(const pickle::Value& root);

}  // namespace dsckpt
