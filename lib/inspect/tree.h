// The names of tensors as a tree of modules.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "inspect/contents.h"

namespace dsckpt {

// A module or, if it has no children, a tensor.
struct TreeNode {
  // One part of a dotted name: "weight". Folded modules have "layers.[0-27]" or "[0-27]".
  std::string name;
  uint64_t folded = 1;  // how many equal modules or tensors this stands for
  // For all of them together; aliases have none of their own.
  uint64_t tensors = 0;
  int64_t elements = 0;
  uint64_t bytes = 0;
  // Set for a tensor.
  const NamedTensor* tensor = nullptr;
  std::vector<TreeNode> children;
  // Set for a module with only one tensor below it: that tensor, and the rest of its name. expand()
  // makes its modules when they are looked at, since names of a hundred parts may share almost
  // none.
  const NamedTensor* only = nullptr;
  std::string rest = {};
  size_t depth = 0;  // the root's is 0

  bool has_children() const { return only != nullptr || !children.empty(); }
};

// The only child of a node that has `only`.
TreeNode only_child(const TreeNode& node);
// Adds that child to the node.
void expand(TreeNode& node);

// The root, which has no name, of the tree of `tensors`, which must outlive it. Parts have the
// order of their first tensors. With `fold`, neighbouring modules with numbers as names become one
// node if their contents are equal (names, shapes, types). A module with a single child becomes one
// node with it, and no node has `only`. Memory: the names, and the modules that several tensors
// share.
TreeNode tree_of(const std::vector<NamedTensor>& tensors, bool fold);

}  // namespace dsckpt
