// Treemap: the bytes of modules as rectangles, whose areas are in proportion to them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "inspect/tree.h"

namespace dsckpt {

// In parts of the whole map: x and width of its width, y and height of its height.
struct MapArea {
  double x = 0;
  double y = 0;
  double width = 1;
  double height = 1;
};

// Modules that are one thing to the eye: they share a colour.
struct MapGroup {
  std::string name;  // "model.layers.[0-27].mlp"; "" if there is only one
  uint64_t bytes = 0;
  uint64_t tensors = 0;
};

// A tensor, or folded ones, or small ones that were put together.
struct MapCell {
  MapArea area;
  size_t group = 0;  // in Treemap::groups; groups.size() if it belongs to none of them
  // Below the group's; all of it if it is the group, or in none; "" of small ones together.
  std::string name;
  std::string path;  // the whole name; of small ones, of the module they are in
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

// Squarified (Bruls, Huizing and van Wijk 2000) for a map that is `aspect` times as wide as high.
// Modules stay together. Cells that would be smaller than `smallest`, a part of the whole map, are
// put together with their neighbours in the same module, so there are at most some 2 / smallest.
Treemap treemap_of(const TreeNode& root, double aspect, double smallest);

// The rectangles of `weights`, which are above 0 and descend, in `area`: squarified.
std::vector<MapArea> squarified(const std::vector<double>& weights, const MapArea& area,
                                double aspect);

}  // namespace dsckpt
