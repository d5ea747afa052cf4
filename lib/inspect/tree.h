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
  // Of a module below which there is one tensor alone: it, and its name from there. Its modules are
  // made when somebody looks (expand()), since names of a hundred parts may share next to none.
  const NamedTensor* only = nullptr;
  std::string rest = {};
  size_t depth = 0;  // the root's is 0

  bool has_children() const { return only != nullptr || !children.empty(); }
};

// The one child of a node that has `only`.
TreeNode only_child(const TreeNode& node);
// Gives it that child.
void expand(TreeNode& node);

// The root, which has no name, of `tensors`, which must outlive it. Parts appear in the order of
// their first tensor. With `fold`, neighbouring modules with numbers for names and the same below
// them (names, shapes, types) are one node, and a module with a single child is one node with it;
// none has `only` then. Memory: that of the names and of the modules that several tensors share.
TreeNode tree_of(const std::vector<NamedTensor>& tensors, bool fold);

}  // namespace dsckpt
