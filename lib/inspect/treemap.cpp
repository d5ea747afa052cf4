#include "inspect/treemap.h"

#include <algorithm>
#include <map>
#include <numeric>

namespace dsckpt {
namespace {

constexpr size_t kMaxGroups = 8;
// Shares of all bytes. A smaller module gets no colour of its own. A larger one is split if that
// does not make too many groups.
constexpr double kSmallestGroup = 0.01;
constexpr double kLargestGroup = 0.5;

std::string joined(const std::string& path, const std::string& name) {
  return path.empty() ? name : path + "." + name;
}

// A module that may become a group.
struct Candidate {
  const TreeNode* node;
  std::string path;
};

bool larger(const Candidate& a, const Candidate& b) {
  return a.node->bytes > b.node->bytes;
}

class Builder {
 public:
  Builder(const TreeNode& root, double aspect, double smallest)
      : root_(root), aspect_(aspect), smallest_(smallest) {}

  Treemap build() {
    map_.bytes = root_.bytes;
    map_.tensors = root_.tensors;
    if (root_.bytes == 0) return std::move(map_);
    choose_groups();
    place({&root_, ""}, {}, nullptr);
    return std::move(map_);
  }

 private:
  double share(const TreeNode& node) const {
    return static_cast<double>(node.bytes) / static_cast<double>(root_.bytes);
  }

  size_t count_groups(const std::vector<Candidate>& candidates) const {
    return static_cast<size_t>(std::count_if(
        candidates.begin(), candidates.end(),
        [&](const Candidate& candidate) { return share(*candidate.node) >= kSmallestGroup; }));
  }

  void choose_groups() {
    std::vector<Candidate> chosen{{&root_, ""}};
    // A module that is also a tensor stays whole: its children lack the tensor's own bytes.
    while (share(*chosen.front().node) > kLargestGroup && !chosen.front().node->children.empty() &&
           !chosen.front().node->tensor) {
      std::vector<Candidate> next(chosen.begin() + 1, chosen.end());
      for (const TreeNode& child : chosen.front().node->children) {
        next.push_back({&child, joined(chosen.front().path, child.name)});
      }
      if (count_groups(next) > kMaxGroups) break;
      std::stable_sort(next.begin(), next.end(), larger);
      chosen = std::move(next);
    }
    for (const Candidate& group : chosen) {
      if (share(*group.node) < kSmallestGroup) continue;
      group_of_[group.node] = map_.groups.size();
      map_.groups.push_back({group.path, group.node->bytes, group.node->tensors});
    }
    map_.rest = {"", map_.bytes, map_.tensors};
    for (const MapGroup& group : map_.groups) {
      map_.rest.bytes -= group.bytes;
      map_.rest.tensors -= group.tensors;
    }
  }

  // The group of a cell, and the begin of its name in the path.
  struct Home {
    size_t group;
    size_t prefix;  // characters of the path that name the group
  };

  void add_cell(const MapArea& area, const std::string& path, bool together, uint64_t bytes,
                uint64_t tensors, const Home* home) {
    MapCell cell{area, home ? home->group : map_.groups.size(), "", path, bytes, tensors};
    if (!together) {
      const size_t prefix = home ? home->prefix : 0;
      cell.name = prefix < path.size() ? path.substr(prefix) : path;
    }
    map_.cells.push_back(std::move(cell));
  }

  void place(const Candidate& module, const MapArea& area, const Home* home) {
    const TreeNode& node = *module.node;
    Home own{};
    if (const auto found = group_of_.find(&node); found != group_of_.end()) {
      own = {found->second, module.path.empty() ? 0 : module.path.size() + 1};
      home = &own;
    }
    if (node.children.empty()) {
      return add_cell(area, module.path, false, node.bytes, node.tensors, home);
    }
    place_children(module, area, home);
  }

  void place_children(const Candidate& module, const MapArea& area, const Home* home) {
    std::vector<Candidate> children;
    TreeNode small;  // the tensors of this module that are too small, and the module's own tensor
    small.bytes = module.node->bytes;
    small.tensors = module.node->tensors;
    for (const TreeNode& child : module.node->children) {
      if (child.bytes == 0 || share(child) < smallest_) continue;
      children.push_back({&child, joined(module.path, child.name)});
      small.bytes -= child.bytes;
      small.tensors -= child.tensors;
    }
    std::stable_sort(children.begin(), children.end(), larger);
    std::vector<double> weights;
    for (const Candidate& child : children) weights.push_back(share(*child.node));
    const auto rank =
        std::upper_bound(weights.begin(), weights.end(), share(small), std::greater<double>()) -
        weights.begin();
    if (small.bytes > 0) weights.insert(weights.begin() + rank, share(small));
    const std::vector<MapArea> areas = squarified(weights, area, aspect_);
    for (size_t i = 0, next = 0; i < areas.size(); ++i) {
      if (small.bytes > 0 && i == static_cast<size_t>(rank)) {
        add_cell(areas[i], module.path, true, small.bytes, small.tensors, home);
      } else {
        place(children[next++], areas[i], home);
      }
    }
  }

  const TreeNode& root_;
  double aspect_;
  double smallest_;
  std::map<const TreeNode*, size_t> group_of_;
  Treemap map_;
};

// Returns the worst aspect ratio in a row of areas from `smallest` to `largest` with the sum `sum`,
// along a side of `length`.
double worst_ratio(double sum, double smallest, double largest, double length) {
  const double square = length * length;
  return std::max(square * largest / (sum * sum), sum * sum / (square * smallest));
}

}  // namespace

std::vector<MapArea> squarified(const std::vector<double>& weights, const MapArea& area,
                                double aspect) {
  const double total = std::accumulate(weights.begin(), weights.end(), 0.0);
  // Lengths are in units of the map's height, so that they can be compared.
  MapArea left{area.x * aspect, area.y, area.width * aspect, area.height};
  const double scale = left.width * left.height / total;
  std::vector<MapArea> out;
  for (size_t begin = 0; begin < weights.size();) {
    if (!(left.width > 0 && left.height > 0)) {  // some weights vanish beside the others
      out.resize(weights.size(), {left.x / aspect, left.y, 0, 0});
      break;
    }
    const double length = std::min(left.width, left.height);
    const double largest = weights[begin] * scale;
    double sum = largest;
    size_t end = begin + 1;
    for (; end < weights.size(); ++end) {
      const double next = weights[end] * scale;
      if (worst_ratio(sum + next, next, largest, length) >
          worst_ratio(sum, weights[end - 1] * scale, largest, length)) {
        break;
      }
      sum += next;
    }
    const bool column = left.width >= left.height;
    const double depth = sum / length;
    double at = 0;
    for (; begin < end; ++begin) {
      const double side = weights[begin] * scale / depth;
      out.push_back(column ? MapArea{left.x / aspect, left.y + at, depth / aspect, side}
                           : MapArea{(left.x + at) / aspect, left.y, side / aspect, depth});
      at += side;
    }
    if (column) {
      left.x += depth;
      left.width = std::max(left.width - depth, 0.0);
    } else {
      left.y += depth;
      left.height = std::max(left.height - depth, 0.0);
    }
  }
  return out;
}

Treemap treemap_of(const TreeNode& root, double aspect, double smallest) {
  return Builder(root, aspect, smallest).build();
}

}  // namespace dsckpt
