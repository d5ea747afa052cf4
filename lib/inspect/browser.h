// Browser: where somebody is who walks through the tree of names. It draws nothing.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/patterns.h"
#include "inspect/contents.h"
#include "inspect/tree.h"

namespace dsckpt {

class Browser {
 public:
  // By what lines are sorted. Bytes and elements fall; parts of names that are numbers count as
  // numbers; `contents` is the order in which the tensors were given.
  enum class Order : uint8_t { bytes, name, elements, contents };

  // A module, or a tensor.
  struct Line {
    TreeNode* node = nullptr;
    // Not all of `node`, which has more below its name, but the tensor of that name.
    bool itself = false;
    // Without states, and without tied tensors.
    uint64_t tensors = 0;
    int64_t elements = 0;
    uint64_t bytes = 0;  // of the counted kind, or of all; states too

    // Whether there is something to go into.
    bool is_module() const { return !itself && node->has_children(); }
    // The tensor of this name; nullptr if a module has none.
    const NamedTensor* tensor() const { return node->tensor; }
  };

  // `tensors` must outlive it. `kind` says what the bytes of one are for (kind_of_bytes).
  Browser(const std::vector<NamedTensor>& tensors,
          const std::function<std::string(const NamedTensor&)>& kind);

  // What is below the module, sorted; of a name that is a tensor and has states, itself too. While
  // one kind is counted, what has no bytes of it is not there.
  const std::vector<Line>& lines() const { return lines_; }
  // Of lines(); 0 if there is none.
  size_t cursor() const { return cursor_; }
  // The line there; nullptr if there is none.
  const Line* current() const { return lines_.empty() ? nullptr : &lines_[cursor_]; }
  // The module whose lines these are: "model.layers", "" at the top.
  std::string path() const;
  // The whole of it, as one line.
  const Line& module() const { return module_; }

  // Moves the cursor by so many lines, as far as there are some.
  void move(ptrdiff_t by);
  // Into the module under the cursor; false if there is none.
  bool enter();
  // Out of the module, to its line; false at the top.
  bool leave();

  Order order() const { return order_; }
  // The cursor stays with its line.
  void sort(Order order);

  // What bytes there are for, as in byte_kinds.h and in its order.
  const std::vector<std::string>& kinds() const { return kinds_; }
  // Bytes of line `line`, and of the module, by kind.
  uint64_t bytes_of(size_t line, size_t kind) const;
  uint64_t module_bytes_of(size_t kind) const;
  // The one kind that is counted; nullopt: all of them.
  std::optional<size_t> counted() const { return counted_; }
  // Counts the next kind of which the module has bytes; after the last, all again.
  void count_next_kind();

  // To the next tensor, or the one before, in the order of the contents, whose name with its state
  // ("lm_head.weight.exp_avg") matches. Goes round at the end. False, and nothing moves, if there
  // is none. Counts all kinds again.
  bool find(const Patterns& patterns, bool forward);

  // Marks the tensor of the line under the cursor, or no longer. Of two that are marked the older
  // one goes.
  void mark();
  bool marked(const NamedTensor& tensor) const;
  // The older one first; at most two.
  const std::vector<const NamedTensor*>& marks() const { return marks_; }

 private:
  struct Level {
    TreeNode* node;
    const TreeNode* from;  // under the cursor when it was left for the next; nullptr: the first
    bool itself;
  };

  // Bytes of the kinds that there are, in the order of kinds_: there can be as many kinds as
  // tensors.
  using ByKind = std::vector<std::pair<size_t, uint64_t>>;
  struct Sums {
    std::vector<uint64_t> bytes;  // kinds_.size()
    std::vector<size_t> kinds;    // those with any bytes
  };

  void show(const TreeNode* at, bool itself);
  // Adds up what is in `node`.
  void add(const TreeNode& node, Line& line, Sums& sums) const;
  void add(const NamedTensor& tensor, Line& line, Sums& sums) const;
  // What was added up, which is nothing then.
  static ByKind take(Sums& sums);
  size_t kind_of(const NamedTensor& tensor) const;
  size_t first_tensor(const TreeNode& node) const;
  void go_to(const NamedTensor& tensor);

  const std::vector<NamedTensor>& tensors_;
  TreeNode root_;
  std::vector<std::string> kinds_;
  std::vector<uint32_t> kind_of_;  // of each tensor
  std::vector<Level> levels_;      // from the root to the module
  Line module_;
  std::vector<Line> lines_;
  std::vector<ByKind> by_kind_;           // of each line
  std::vector<uint64_t> module_by_kind_;  // kinds_.size()
  size_t cursor_ = 0;
  Order order_ = Order::bytes;
  std::optional<size_t> counted_;
  std::vector<const NamedTensor*> marks_;
};

// Whether `a` comes before `b`, where runs of digits count as numbers: "layers.2" before
// "layers.10".
bool natural_less(std::string_view a, std::string_view b);

}  // namespace dsckpt
