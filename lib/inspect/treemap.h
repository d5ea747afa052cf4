// Treemap: rectangles for modules, with areas in proportion to their bytes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "inspect/tree.h"

namespace dsckpt {

// Relative to the whole map: x and width to its width, y and height to its height.
struct MapArea {
  double x = 0;
  double y = 0;
  double width = 1;
  double height = 1;
};

// Modules that are shown as one: they share a colour.
struct MapGroup {
  std::string name;  // "model.layers.[0-27].mlp"; "" if there is only one
  uint64_t bytes = 0;
  uint64_t tensors = 0;
};

// A tensor, or folded ones, or small ones that are combined.
struct MapCell {
  MapArea area;
  size_t group = 0;  // in Treemap::groups; groups.size() if it belongs to none of them
  // The name below the group's. All of it if the cell is the group, or in none; "" for combined
  // small ones.
  std::string name;
  std::string path;  // the whole name; for small ones, that of their module
  uint64_t bytes = 0;
  uint64_t tensors = 0;
};

struct Treemap {
  uint64_t bytes = 0;
  uint64_t tensors = 0;
  std::vector<MapGroup> groups;  // the largest first, 8 at most
  MapGroup rest;                 // what is in none of them, which is little
  std::vector<MapCell> cells;    // they tile the map; tensors without bytes have none
};

// A squarified map (Bruls, Huizing and van Wijk 2000) that is `aspect` times as wide as high.
// Modules stay together. Cells smaller than `smallest`, a part of the whole map, are combined with
// neighbours in the same module. So there are at most about 2 / smallest.
Treemap treemap_of(const TreeNode& root, double aspect, double smallest);

// The rectangles in `area` for `weights`, which are above 0 and descend: squarified.
std::vector<MapArea> squarified(const std::vector<double>& weights, const MapArea& area,
                                double aspect);

}  // namespace dsckpt
