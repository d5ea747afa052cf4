#include "inspect/tree.h"

#include <algorithm>
#include <charconv>
#include <deque>
#include <memory>
#include <optional>
#include <string_view>
#include <utility>

#include "base/bytes.h"
#include "base/keyed_hash.h"

namespace dsckpt {
namespace {

// No model nests modules deeper. The last node keeps the rest of a longer name.
constexpr size_t kMaxDepth = 100;

// A node under construction.
struct Growing {
  std::string_view name;
  std::vector<Growing> children;
  std::unique_ptr<KeyedMap<std::string, size_t>> index;  // only with many children
  const NamedTensor* tensor = nullptr;
  // The same as in TreeNode.
  const NamedTensor* only = nullptr;
  std::string_view rest;
};

// With fewer children, a search is as fast.
constexpr size_t kIndexed = 8;

// Returns the child of that name, and whether it is new.
std::pair<Growing&, bool> child_of(Growing& node, std::string_view name) {
  if (node.children.size() < kIndexed) {
    for (Growing& child : node.children) {
      if (child.name == name) return {child, false};
    }
  } else {
    if (node.index == nullptr) {
      node.index = std::make_unique<KeyedMap<std::string, size_t>>();
      for (size_t i = 0; i < node.children.size(); ++i) {
        node.index->emplace(std::string(node.children[i].name), i);
      }
    }
    const auto [at, is_new] = node.index->emplace(std::string(name), node.children.size());
    if (!is_new) return {node.children[at->second], false};
  }
  node.children.emplace_back().name = name;
  return {node.children.back(), true};
}

// Splits a name at its first dot. `depth` is the depth of the part, which begins at 1.
std::pair<std::string_view, std::string_view> part_of(std::string_view rest, size_t depth) {
  const size_t dot = depth == kMaxDepth ? std::string_view::npos : rest.find('.');
  if (dot == std::string_view::npos) return {rest, {}};
  return {rest.substr(0, dot), rest.substr(dot + 1)};
}

// Returns whether `part` is all of `rest`. The remainder may be empty after a dot.
bool is_last(std::string_view part, std::string_view rest) {
  return part.size() == rest.size();
}

// Sets the content of a new child for `part` of `rest`.
template <typename Node>
void hold(Node& child, std::string_view part, std::string_view rest, const NamedTensor& tensor) {
  if (is_last(part, rest)) {
    child.tensor = &tensor;
  } else {
    child.only = &tensor;
    child.rest = rest.substr(part.size() + 1);
  }
}

void grow(Growing& root, std::string_view label, const NamedTensor& tensor) {
  Growing* node = &root;
  for (size_t depth = 1;; ++depth) {
    if (node->only != nullptr) {
      const std::string_view before = std::exchange(node->rest, {});
      const std::string_view part = part_of(before, depth).first;
      hold(child_of(*node, part).first, part, before, *std::exchange(node->only, nullptr));
    }
    const std::string_view part = part_of(label, depth).first;
    const auto [child, is_new] = child_of(*node, part);
    if (is_new || is_last(part, label)) {
      // A tensor whose name is also the beginning of other names is a module too.
      return hold(child, part, label, tensor);
    }
    label = part_of(label, depth).second;
    node = &child;
  }
}

std::optional<uint64_t> number_of(const std::string& name) {
  uint64_t number = 0;
  const auto [end, error] = std::from_chars(name.data(), name.data() + name.size(), number);
  if (error != std::errc() || end != name.data() + name.size()) return std::nullopt;
  if (name.size() > 1 && name.front() == '0') return std::nullopt;
  return number;
}

bool same_below(const TreeNode& a, const TreeNode& b) {
  if (a.children.size() != b.children.size() || !a.tensor != !b.tensor) return false;
  if (a.tensor &&
      (a.tensor->value.shape() != b.tensor->value.shape() ||
       a.tensor->value.dtype() != b.tensor->value.dtype() || a.tensor->kind != b.tensor->kind ||
       a.tensor->alias_of.empty() != b.tensor->alias_of.empty() ||
       a.tensor->lost.empty() != b.tensor->lost.empty())) {
    return false;
  }
  return std::equal(
      a.children.begin(), a.children.end(), b.children.begin(),
      [](const TreeNode& x, const TreeNode& y) { return x.name == y.name && same_below(x, y); });
}

void add_counts(TreeNode& into, const TreeNode& other) {
  into.folded += other.folded;
  into.tensors += other.tensors;
  add_saturating(into.elements, other.elements);
  add_saturating(into.bytes, other.bytes);
  for (size_t i = 0; i < other.children.size() && i < into.children.size(); ++i) {
    add_counts(into.children[i], other.children[i]);
  }
}

std::string range_text(uint64_t first, uint64_t last) {
  return "[" + std::to_string(first) + "-" + std::to_string(last) + "]";
}

// Merges equal neighbours 0, 1, 2, ... into one. They are compared with the first of the run,
// before counts are added to it.
std::vector<TreeNode> folded(std::vector<TreeNode> children) {
  std::vector<TreeNode> out;
  for (size_t begin = 0; begin < children.size();) {
    size_t end = begin + 1;
    const std::optional<uint64_t> first = number_of(children[begin].name);
    while (first && end < children.size() && !children[begin].tensor &&
           number_of(children[end].name) == *first + (end - begin) &&
           same_below(children[begin], children[end])) {
      ++end;
    }
    for (size_t i = begin + 1; i < end; ++i) add_counts(children[begin], children[i]);
    if (end - begin > 1) children[begin].name = range_text(*first, *first + (end - begin) - 1);
    out.push_back(std::move(children[begin]));
    begin = end;
  }
  return out;
}

void count(TreeNode& node, const NamedTensor& tensor) {
  if (!tensor.alias_of.empty()) return;
  ++node.tensors;
  add_saturating(node.elements, tensor.value.numel());
  add_saturating(node.bytes, tensor.value.nbytes());
}

TreeNode leaf(std::string name, const NamedTensor& tensor, size_t depth) {
  TreeNode node;
  node.name = std::move(name);
  node.tensor = &tensor;
  node.depth = depth;
  count(node, tensor);
  return node;
}

TreeNode finished(Growing&& growing, bool fold, size_t depth) {
  const std::string name(growing.name);
  TreeNode node;
  node.name = name;
  node.depth = depth;
  node.tensor = growing.tensor;
  if (node.tensor) count(node, *node.tensor);
  if (growing.only != nullptr) {
    if (fold && !node.tensor) {
      return leaf(name + "." + std::string(growing.rest), *growing.only, depth);
    }
    count(node, *growing.only);
    node.only = growing.only;
    node.rest = growing.rest;
    // A name is shown with its modules, as one node.
    if (fold) {
      node.children.push_back(leaf(std::exchange(node.rest, {}), *node.only, depth + 1));
      node.only = nullptr;
    }
    return node;
  }
  for (Growing& child : growing.children) {
    node.children.push_back(finished(std::move(child), fold, depth + 1));
    const TreeNode& last = node.children.back();
    node.tensors += last.tensors;
    add_saturating(node.elements, last.elements);
    add_saturating(node.bytes, last.bytes);
  }
  std::vector<Growing>().swap(growing.children);
  if (!fold) return node;
  node.children = folded(std::move(node.children));
  if (depth > 0 && !node.tensor && node.children.size() == 1) {
    TreeNode only = std::move(node.children.front());
    only.name = name + "." + only.name;
    return only;
  }
  return node;
}

}  // namespace

TreeNode only_child(const TreeNode& node) {
  const std::string_view part = part_of(node.rest, node.depth + 1).first;
  TreeNode child;
  child.name = part;
  child.depth = node.depth + 1;
  hold(child, part, node.rest, *node.only);
  count(child, *node.only);
  return child;
}

void expand(TreeNode& node) {
  if (node.only == nullptr) return;
  node.children.push_back(only_child(node));
  node.only = nullptr;
  node.rest.clear();
}

TreeNode tree_of(const std::vector<NamedTensor>& tensors, bool fold) {
  Growing root;
  std::deque<std::string> with_states;
  for (const NamedTensor& tensor : tensors) {
    std::string_view label = tensor.name;
    if (!tensor.state.empty()) {
      label = with_states.emplace_back(std::string(tensor.name) + "." + tensor.state);
    }
    grow(root, label, tensor);
  }
  return finished(std::move(root), fold, 0);
}

}  // namespace dsckpt
