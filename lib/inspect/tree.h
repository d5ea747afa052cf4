// The names of tensors as a tree of modules.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "inspect/contents.h"

namespace dsckpt {

// A module or, if it has no children, a tensor.
struct TreeNode {
  // One part of a dotted name: "weight"; of modules that were folded "layers.[0-27]" or "[0-27]".
  std::string name;
  uint64_t folded = 1;  // how many equal modules or tensors this stands for
  // Of all of them together; aliases have none of their own.
  uint64_t tensors = 0;
  int64_t elements = 0;
  uint64_t bytes = 0;
  // Of a tensor.
  const NamedTensor* tensor = nullptr;
  std::vector<TreeNode> children;
};

// The root, which has no name, of `tensors`, which must outlive it. Parts appear in the order of
// their first tensor. With `fold`, neighbouring modules with numbers for names and the same below
// them (names, shapes, types) are one node, and a module with a single child is one node with it.
TreeNode tree_of(const std::vector<NamedTensor>& tensors, bool fold);

}  // namespace dsckpt
