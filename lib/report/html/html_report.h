// The contents of a page for a browser (page.h).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/statistics.h"
#include "inspect/extents.h"
#include "inspect/summary.h"
#include "inspect/tree.h"
#include "report/conversions.h"

namespace dsckpt {

// The contents of a page. Empty parts are left out. Texts may be untrusted, straight from files.
struct HtmlReport {
  struct Fact {
    std::string label;
    std::string value;
  };
  // A part of a tensor and the name of the file that it lies in.
  struct Extent {
    std::string file;
    TensorExtent extent;
  };
  struct ShardMap {
    std::string tensor;  // its name
    std::string type;    // "float32 [131, 11]"
    int64_t elements = 0;
    std::vector<Extent> extents;
  };
  struct Distribution {
    std::string tensor;
    std::string type;
    Statistics values;
  };

  std::string title;           // what the page is about: the path
  std::string subtitle;        // what it is: "zero-2 checkpoint"
  std::vector<Fact> headline;  // a few, short: "Parameters", "1.24 B"
  std::vector<Fact> facts;
  std::vector<std::string> notes;
  std::vector<BytesOfKind> kinds;  // on disk; they add up to all
  std::vector<RankShare> ranks;
  std::vector<GridRank> grid;  // of a split model
  std::optional<TreeNode> modules;
  std::vector<Distribution> totals;   // of all tensors of a kind: "weights", "exp_avg"
  std::vector<Distribution> tensors;  // in the order in which they are shown
  std::vector<ShardMap> maps;
  Hardware hardware;  // of the estimates
  std::vector<MemoryEstimate> estimates;
  std::vector<Conversion> conversions;
};

}  // namespace dsckpt
