#include "inspect/tree.h"

#include <algorithm>
#include <charconv>
#include <optional>
#include <utility>

#include "base/bytes.h"
#include "base/keyed_hash.h"

namespace dsckpt {
namespace {

// Names with more parts than anyone's modules are nested keep the rest in one.
constexpr size_t kMaxDepth = 100;

// A node in the making: children by name.
struct Growing {
  std::string name;
  std::vector<Growing> children;
  KeyedMap<std::string, size_t> index;
  const NamedTensor* tensor = nullptr;

  Growing& child(const std::string& part) {
    const auto [at, is_new] = index.emplace(part, children.size());
    if (is_new) children.emplace_back().name = part;
    return children[at->second];
  }
};

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

// Neighbours 0, 1, 2, ... that are alike become one. Compared before counts are added up, with what
// the first of a run was.
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

TreeNode finished(Growing&& growing, bool fold) {
  const std::string name = std::move(growing.name);
  TreeNode node;
  node.name = name;
  node.tensor = growing.tensor;
  if (node.tensor && node.tensor->alias_of.empty()) {
    node.tensors = 1;
    node.elements = node.tensor->value.numel();
    node.bytes = node.tensor->value.nbytes();
  }
  for (Growing& child : growing.children) {
    node.children.push_back(finished(std::move(child), fold));
    const TreeNode& last = node.children.back();
    node.tensors += last.tensors;
    add_saturating(node.elements, last.elements);
    add_saturating(node.bytes, last.bytes);
  }
  if (!fold) return node;
  node.children = folded(std::move(node.children));
  if (!name.empty() && !node.tensor && node.children.size() == 1) {
    TreeNode only = std::move(node.children.front());
    only.name = name + "." + only.name;
    return only;
  }
  return node;
}

}  // namespace

TreeNode tree_of(const std::vector<NamedTensor>& tensors, bool fold) {
  Growing root;
  for (const NamedTensor& tensor : tensors) {
    Growing* node = &root;
    const std::string label = tensor.name + (tensor.state.empty() ? "" : "." + tensor.state);
    size_t begin = 0;
    for (size_t depth = 0; depth < kMaxDepth; ++depth) {
      const size_t dot = label.find('.', begin);
      if (dot == std::string::npos || depth + 1 == kMaxDepth) break;
      node = &node->child(label.substr(begin, dot - begin));
      begin = dot + 1;
    }
    // A name that is also the beginning of others is a module and a tensor.
    node->child(label.substr(begin)).tensor = &tensor;
  }
  return finished(std::move(root), fold);
}

}  // namespace dsckpt
