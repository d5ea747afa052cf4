// The differences between two, by module.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "inspect/diff.h"

namespace dsckpt {

inline constexpr size_t kVerdicts = 7;

// A module with everything below it.
struct DiffNode {
  std::string name;  // one part of a dotted name, or several where a module has one child only
  std::array<uint64_t, kVerdicts> verdicts{};   // tensors, by Verdict
  Difference total = {};                        // of all values that were compared
  bool holds_largest = false;                   // the tensor Diff::largest_in
  std::vector<const TensorDiff*> tensors = {};  // its own that are shown, the furthest apart first
  std::vector<DiffNode> children = {};  // modules with tensors that are shown, in their order
  uint64_t left_out = 0;                // hidden tensors of its own, and those of hidden modules

  uint64_t count() const;
  uint64_t differing() const;  // neither equal nor within the tolerance
};

// A tree of the `most` tensors of `diff` that are furthest apart. Equal tensors come last, and only
// with `equal`. All tensors count in the sums. `diff` must outlive it.
DiffNode diff_tree(const Diff& diff, bool equal, size_t most);

// All tensors, the furthest apart first, by the largest |a - b|. Tensors that were not compared
// follow, then equal ones.
std::vector<const TensorDiff*> furthest_apart(const Diff& diff);

}  // namespace dsckpt
