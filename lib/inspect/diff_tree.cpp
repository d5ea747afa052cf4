#include "inspect/diff_tree.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <numeric>
#include <optional>
#include <string_view>
#include <system_error>
#include <tuple>
#include <unordered_set>
#include <utility>

#include "base/keyed_hash.h"

namespace dsckpt {
namespace {

constexpr size_t kDeepest = 12;  // nested modules; deeper names keep their dots
constexpr size_t kFlat = 12;     // tensors in the list of a module without submodules

bool is_same(Verdict verdict) {
  return verdict == Verdict::equal || verdict == Verdict::within;
}

// NaN and infinity are the largest.
double distance_of(const TensorDiff& tensor) {
  const auto distance = static_cast<double>(tensor.values.max_absolute);
  return std::isnan(distance) ? HUGE_VAL : distance;
}

// A module to which tensors are still added.
struct Module {
  DiffNode node;
  KeyedMap<std::string, size_t> by_name = {};  // of `children`
  std::vector<Module> children = {};
};

void count(DiffNode& node, const TensorDiff& tensor, bool is_largest) {
  ++node.verdicts[static_cast<size_t>(tensor.verdict)];
  node.total.add(tensor.values);
  node.holds_largest = node.holds_largest || is_largest;
}

void put(Module& module, const TensorDiff& tensor, std::string_view rest, bool shown,
         bool is_largest, size_t depth) {
  count(module.node, tensor, is_largest);
  const size_t dot = rest.find('.');
  if (dot == rest.npos || depth == kDeepest) {
    if (shown) {
      module.node.tensors.push_back(&tensor);
    } else {
      ++module.node.left_out;
    }
    return;
  }
  const std::string part(rest.substr(0, dot));
  const auto [found, is_new] = module.by_name.try_emplace(part, module.children.size());
  if (is_new) module.children.push_back({.node = {.name = part}});
  put(module.children[found->second], tensor, rest.substr(dot + 1), shown, is_largest, depth + 1);
}

size_t shown_below(const DiffNode& node) {
  size_t shown = node.tensors.size();
  for (const DiffNode& child : node.children) shown += shown_below(child);
  return shown;
}

// Moves the tensors of `child` to `node` itself.
void take_tensors(DiffNode& node, const DiffNode& child) {
  node.tensors.insert(node.tensors.end(), child.tensors.begin(), child.tensors.end());
  node.left_out += child.left_out;
  for (const DiffNode& below : child.children) take_tensors(node, below);
}

std::optional<uint64_t> number_of(const DiffNode& node) {
  uint64_t number = 0;
  const char* end = node.name.data() + node.name.size();
  const auto [stop, failed] = std::from_chars(node.name.data(), end, number);
  return failed == std::errc() && stop == end ? std::optional(number) : std::nullopt;
}

// Sorts layers by number, whatever their order in the file.
void sort_layers(std::vector<DiffNode>& nodes) {
  if (!std::all_of(nodes.begin(), nodes.end(), number_of)) return;
  std::stable_sort(nodes.begin(), nodes.end(), [](const DiffNode& a, const DiffNode& b) {
    return *number_of(a) < *number_of(b);
  });
}

// Modules without anything to show are only counted. A module with one tensor is merged into its
// parent. A module with one child is merged with it, and a small one becomes a list.
DiffNode finished(Module&& module, bool is_root) {
  DiffNode node = std::move(module.node);
  for (Module& child : module.children) {
    DiffNode done = finished(std::move(child), false);
    if (done.tensors.empty() && done.children.empty()) {
      node.left_out += done.count();
    } else if (done.count() == 1) {
      take_tensors(node, done);
    } else {
      node.children.push_back(std::move(done));
    }
  }
  const bool is_chain = !is_root && node.tensors.empty() && node.children.size() == 1 &&
                        node.children.front().count() == node.count();
  if (is_chain) {
    DiffNode only = std::move(node.children.front());
    only.name = node.name + "." + only.name;
    return only;
  }
  if (!is_root && shown_below(node) <= kFlat) {
    const std::vector<DiffNode> children = std::exchange(node.children, {});
    for (const DiffNode& child : children) take_tensors(node, child);
  }
  sort_layers(node.children);
  std::stable_sort(
      node.tensors.begin(), node.tensors.end(), [](const TensorDiff* a, const TensorDiff* b) {
        return std::pair(a->verdict, distance_of(*a)) > std::pair(b->verdict, distance_of(*b));
      });
  return node;
}

}  // namespace

uint64_t DiffNode::count() const {
  return std::accumulate(verdicts.begin(), verdicts.end(), uint64_t{0});
}

uint64_t DiffNode::differing() const {
  return count() - verdicts[static_cast<size_t>(Verdict::equal)] -
         verdicts[static_cast<size_t>(Verdict::within)];
}

std::vector<const TensorDiff*> furthest_apart(const Diff& diff) {
  std::vector<const TensorDiff*> tensors;
  for (const TensorDiff& tensor : diff.tensors) tensors.push_back(&tensor);
  std::stable_sort(tensors.begin(), tensors.end(), [](const TensorDiff* a, const TensorDiff* b) {
    const auto rank = [](const TensorDiff& tensor) {
      return std::tuple(!is_same(tensor.verdict), distance_of(tensor), tensor.verdict);
    };
    return rank(*a) > rank(*b);
  });
  return tensors;
}

DiffNode diff_tree(const Diff& diff, bool equal, size_t most) {
  std::unordered_set<const TensorDiff*> shown;
  for (const TensorDiff* tensor : furthest_apart(diff)) {
    if (shown.size() == most) break;
    if (equal || tensor->verdict != Verdict::equal) shown.insert(tensor);
  }
  Module root;
  for (const TensorDiff& tensor : diff.tensors) {
    const bool is_largest = !diff.largest_in.empty() && tensor.label() == diff.largest_in;
    put(root, tensor, tensor.name, shown.contains(&tensor), is_largest, 0);
  }
  return finished(std::move(root), true);
}

}  // namespace dsckpt
