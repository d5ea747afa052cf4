#include "inspect/browser.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "base/bytes.h"
#include "base/keyed_hash.h"
#include "inspect/byte_kinds.h"

namespace dsckpt {
namespace {

bool is_digit(char c) {
  return c >= '0' && c <= '9';
}

// Takes the digits at the front off `text`. Returns them without leading zeros.
std::string_view take_number(std::string_view& text) {
  const auto end =
      static_cast<size_t>(std::find_if_not(text.begin(), text.end(), is_digit) - text.begin());
  std::string_view digits = text.substr(0, end);
  text.remove_prefix(end);
  digits.remove_prefix(std::min(digits.find_first_not_of('0'), digits.size()));
  return digits;
}

// Writes the name of a tensor in the tree.
void tree_name(const NamedTensor& tensor, std::string& out) {
  out.assign(tensor.name);
  if (!tensor.state.empty()) out.append(".").append(tensor.state);
}

// Appends to `path` the nodes from below `node` to the node of `tensor`, whose name is `name` below
// `node`.
bool find_path(TreeNode& node, std::string_view name, const NamedTensor& tensor,
               std::vector<TreeNode*>& path) {
  expand(node);
  for (TreeNode& child : node.children) {
    if (!name.starts_with(child.name)) continue;
    const std::string_view rest = name.substr(child.name.size());
    if (!rest.empty() && rest.front() != '.') continue;
    path.push_back(&child);
    if (child.tensor == &tensor) return true;
    if (!rest.empty() && find_path(child, rest.substr(1), tensor, path)) return true;
    path.pop_back();
  }
  return false;
}

}  // namespace

bool natural_less(std::string_view a, std::string_view b) {
  const std::pair whole(a, b);
  while (!a.empty() && !b.empty()) {
    if (is_digit(a.front()) && is_digit(b.front())) {
      const std::string_view x = take_number(a);
      const std::string_view y = take_number(b);
      if (x.size() != y.size()) return x.size() < y.size();
      if (x != y) return x < y;
      continue;
    }
    if (a.front() != b.front()) {
      return static_cast<unsigned char>(a.front()) < static_cast<unsigned char>(b.front());
    }
    a.remove_prefix(1);
    b.remove_prefix(1);
  }
  if (a.empty() != b.empty()) return a.empty();
  return whole.first < whole.second;  // "01" and "1"
}

Browser::Browser(const std::vector<NamedTensor>& tensors,
                 const std::function<std::string(const NamedTensor&)>& kind)
    : tensors_(tensors), root_(tree_of(tensors, false)) {
  KeyedMap<std::string, uint32_t> known;
  for (const NamedTensor& tensor : tensors) {
    const auto [at, is_new] = known.emplace(kind(tensor), static_cast<uint32_t>(kinds_.size()));
    if (is_new) kinds_.push_back(at->first);
    kind_of_.push_back(at->second);
  }
  std::vector<uint32_t> sorted(kinds_.size());
  std::iota(sorted.begin(), sorted.end(), 0U);
  std::stable_sort(sorted.begin(), sorted.end(), [&](uint32_t a, uint32_t b) {
    return kind_rank(kinds_[a]) < kind_rank(kinds_[b]);
  });
  std::vector<uint32_t> place(kinds_.size());
  std::vector<std::string> names;
  for (const uint32_t i : sorted) {
    place[i] = static_cast<uint32_t>(names.size());
    names.push_back(std::move(kinds_[i]));
  }
  kinds_ = std::move(names);
  for (uint32_t& number : kind_of_) number = place[number];
  levels_.push_back({&root_, nullptr, false});
  show(nullptr, false);
}

std::string Browser::path() const {
  std::string text;
  for (size_t i = 1; i < levels_.size(); ++i) {
    text += (i > 1 ? "." : "") + levels_[i].node->name;
  }
  return text;
}

void Browser::move(ptrdiff_t by) {
  if (lines_.empty()) return;
  const auto last = static_cast<ptrdiff_t>(lines_.size()) - 1;
  const auto at = static_cast<ptrdiff_t>(cursor_);
  cursor_ = static_cast<size_t>(std::clamp(by, -at, last - at) + at);
}

bool Browser::enter() {
  const Line* line = current();
  if (line == nullptr || !line->is_module()) return false;
  levels_.back().from = line->node;
  levels_.back().itself = line->itself;
  levels_.push_back({line->node, nullptr, false});
  show(nullptr, false);
  return true;
}

bool Browser::leave() {
  if (levels_.size() == 1) return false;
  levels_.pop_back();
  show(levels_.back().from, levels_.back().itself);
  return true;
}

void Browser::sort(Order order) {
  order_ = order;
  const Line* line = current();
  show(line ? line->node : nullptr, line && line->itself);
}

uint64_t Browser::bytes_of(size_t line, size_t kind) const {
  const ByKind& mine = by_kind_[line];
  const auto found = std::lower_bound(mine.begin(), mine.end(), std::pair(kind, uint64_t{0}));
  return found == mine.end() || found->first != kind ? 0 : found->second;
}

uint64_t Browser::module_bytes_of(size_t kind) const {
  return module_by_kind_[kind];
}

void Browser::count_next_kind() {
  const size_t next = counted_ ? *counted_ + 1 : 0;
  counted_ = std::nullopt;
  for (size_t kind = next; kind < kinds_.size() && !counted_; ++kind) {
    if (module_bytes_of(kind) > 0) counted_ = kind;
  }
  const Line* line = current();
  show(line ? line->node : nullptr, line && line->itself);
}

bool Browser::find(const Patterns& patterns, bool forward) {
  const Line* line = current();
  const size_t count = tensors_.size();
  if (count == 0) return false;
  // From a module, the search starts at its first tensor.
  const size_t start = line ? first_tensor(*line->node) : 0;
  const bool inclusive = forward && (line == nullptr || line->is_module());
  std::string name;
  for (size_t step = inclusive ? 0 : 1; step <= count; ++step) {
    const size_t i = (forward ? start + step : start + count - step % count) % count;
    tree_name(tensors_[i], name);
    if (!patterns.find_in(name)) continue;
    go_to(tensors_[i]);
    return true;
  }
  return false;
}

void Browser::mark() {
  const NamedTensor* tensor = current() ? current()->tensor() : nullptr;
  if (tensor == nullptr) return;
  if (std::erase(marks_, tensor) > 0) return;
  if (marks_.size() == 2) marks_.erase(marks_.begin());
  marks_.push_back(tensor);
}

bool Browser::marked(const NamedTensor& tensor) const {
  return std::find(marks_.begin(), marks_.end(), &tensor) != marks_.end();
}

// Shows the lines of the module, with the cursor on the line of `at`.
void Browser::show(const TreeNode* at, bool itself) {
  TreeNode& node = *levels_.back().node;
  expand(node);
  lines_.clear();
  if (node.tensor != nullptr) lines_.push_back({&node, true});
  for (TreeNode& child : node.children) lines_.push_back({&child});
  module_ = {&node};
  // Sums are in the order of the nodes, and are sorted with the lines.
  std::vector<ByKind> by_kind(lines_.size());
  Sums sums{std::vector<uint64_t>(kinds_.size()), {}};
  module_by_kind_.assign(kinds_.size(), 0);
  std::vector<size_t> sorted;
  for (size_t i = 0; i < lines_.size(); ++i) {
    Line& line = lines_[i];
    if (line.itself) {
      add(*node.tensor, line, sums);
    } else {
      add(*line.node, line, sums);
    }
    by_kind[i] = take(sums);
    module_.tensors += line.tensors;
    add_saturating(module_.elements, line.elements);
    for (const auto& [kind, bytes] : by_kind[i]) {
      add_saturating(module_by_kind_[kind], bytes);
      if (!counted_ || kind == *counted_) add_saturating(line.bytes, bytes);
    }
    add_saturating(module_.bytes, line.bytes);
    if (!counted_ || line.bytes > 0) sorted.push_back(i);
  }
  std::stable_sort(sorted.begin(), sorted.end(), [&](size_t x, size_t y) {
    const Line& a = lines_[x];
    const Line& b = lines_[y];
    switch (order_) {
      case Order::bytes:
        return a.bytes > b.bytes;
      case Order::elements:
        return a.elements > b.elements;
      case Order::name:
        return natural_less(a.itself ? "" : a.node->name, b.itself ? "" : b.node->name);
      case Order::contents:
        break;
    }
    return x < y;
  });
  std::vector<Line> lines;
  by_kind_.clear();
  cursor_ = 0;
  for (const size_t i : sorted) {
    if (lines_[i].node == at && lines_[i].itself == itself) cursor_ = lines.size();
    lines.push_back(lines_[i]);
    by_kind_.push_back(std::move(by_kind[i]));
  }
  lines_ = std::move(lines);
}

void Browser::add(const TreeNode& node, Line& line, Sums& sums) const {
  if (node.tensor != nullptr) add(*node.tensor, line, sums);
  if (node.only != nullptr) add(*node.only, line, sums);
  for (const TreeNode& child : node.children) add(child, line, sums);
}

void Browser::add(const NamedTensor& tensor, Line& line, Sums& sums) const {
  if (!tensor.alias_of.empty()) return;
  const uint64_t bytes = tensor.value.nbytes();
  uint64_t& sum = sums.bytes[kind_of(tensor)];
  if (sum == 0 && bytes > 0) sums.kinds.push_back(kind_of(tensor));
  add_saturating(sum, bytes);
  if (!tensor.state.empty()) return;
  ++line.tensors;
  add_saturating(line.elements, tensor.value.numel());
}

Browser::ByKind Browser::take(Sums& sums) {
  std::sort(sums.kinds.begin(), sums.kinds.end());
  ByKind taken;
  taken.reserve(sums.kinds.size());
  for (const size_t kind : sums.kinds) taken.emplace_back(kind, std::exchange(sums.bytes[kind], 0));
  sums.kinds.clear();
  return taken;
}

size_t Browser::kind_of(const NamedTensor& tensor) const {
  return kind_of_[static_cast<size_t>(&tensor - tensors_.data())];
}

// Returns the number of the node's first tensor.
size_t Browser::first_tensor(const TreeNode& node) const {
  const TreeNode* at = &node;
  while (at->tensor == nullptr && at->only == nullptr) at = &at->children.front();
  const NamedTensor* const first = at->tensor != nullptr ? at->tensor : at->only;
  return static_cast<size_t>(first - tensors_.data());
}

void Browser::go_to(const NamedTensor& tensor) {
  std::string name;
  tree_name(tensor, name);
  std::vector<TreeNode*> path;
  if (!find_path(root_, name, tensor, path)) return;  // another tensor of the same name
  const TreeNode* const target = path.back();
  const bool itself = target->has_children();
  if (!itself) path.pop_back();
  counted_ = std::nullopt;
  levels_ = {{&root_, nullptr, false}};
  for (TreeNode* node : path) {
    levels_.back().from = node;
    levels_.push_back({node, nullptr, false});
  }
  show(target, itself);
}

}  // namespace dsckpt
