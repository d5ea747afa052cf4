// Browser: the position of a user who walks through the tree of names. It draws nothing.
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
  // The key for sorting lines. Bytes and elements fall. Parts of names that are numbers sort as
  // numbers. `contents` is the original order of the tensors.
  enum class Order : uint8_t { bytes, name, elements, contents };

  // A module, or a tensor.
  struct Line {
    TreeNode* node = nullptr;
    // Only the tensor of `node`, which has more below its name.
    bool itself = false;
    // Without states, and without tied tensors.
    uint64_t tensors = 0;
    int64_t elements = 0;
    uint64_t bytes = 0;  // of the counted kind, or of all; states too

    // True if the user can enter it.
    bool is_module() const { return !itself && node->has_children(); }
    // The tensor of this name; nullptr if a module has none.
    const NamedTensor* tensor() const { return node->tensor; }
  };

  // `tensors` must outlive it. `kind` gives the kind of a tensor's bytes (kind_of_bytes).
  Browser(const std::vector<NamedTensor>& tensors,
          const std::function<std::string(const NamedTensor&)>& kind);

  // The children of the module, sorted. A name that is a tensor and has states has a line for
  // itself too. While one kind is counted, children without bytes of it are left out.
  const std::vector<Line>& lines() const { return lines_; }
  // An index in lines(); 0 if they are empty.
  size_t cursor() const { return cursor_; }
  // The line under the cursor; nullptr if there is none.
  const Line* current() const { return lines_.empty() ? nullptr : &lines_[cursor_]; }
  // The module whose lines these are: "model.layers", "" at the top.
  std::string path() const;
  // The whole module as one line.
  const Line& module() const { return module_; }

  // Moves the cursor by that many lines, at most to the ends.
  void move(ptrdiff_t by);
  // Enters the module under the cursor; false if there is none.
  bool enter();
  // Leaves the module, for its line; false at the top.
  bool leave();

  Order order() const { return order_; }
  // The cursor stays with its line.
  void sort(Order order);

  // The kinds of bytes, as in byte_kinds.h and in its order.
  const std::vector<std::string>& kinds() const { return kinds_; }
  // Bytes of line `line`, and of the module, by kind.
  uint64_t bytes_of(size_t line, size_t kind) const;
  uint64_t module_bytes_of(size_t kind) const;
  // The only kind that is counted; nullopt: all kinds.
  std::optional<size_t> counted() const { return counted_; }
  // Counts the next kind of bytes in the module; after the last, all kinds.
  void count_next_kind();

  // Moves to the next or previous tensor, in the order of the contents, that matches. The patterns
  // are searched in its name with its state ("lm_head.weight.exp_avg"). Wraps around at the end. If
  // none matches, returns false and does not move. Counts all kinds again.
  bool find(const Patterns& patterns, bool forward);

  // Marks the tensor of the line under the cursor, or unmarks it. A third mark replaces the older
  // one.
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

  // Bytes by kind, in the order of kinds_. It is sparse: there can be as many kinds as tensors.
  using ByKind = std::vector<std::pair<size_t, uint64_t>>;
  struct Sums {
    std::vector<uint64_t> bytes;  // kinds_.size()
    std::vector<size_t> kinds;    // those with any bytes
  };

  void show(const TreeNode* at, bool itself);
  // Adds up the contents of `node`.
  void add(const TreeNode& node, Line& line, Sums& sums) const;
  void add(const NamedTensor& tensor, Line& line, Sums& sums) const;
  // Returns the sums, and clears them.
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

// True if `a` comes before `b`, with runs of digits as numbers: "layers.2" before "layers.10".
bool natural_less(std::string_view a, std::string_view b);

}  // namespace dsckpt
