// The drawings of an HtmlReport: inline SVG that fills the width it is given, with titles for those
// who point at a part. Widths are in percent and heights in pixels, so text keeps its size in any
// window. Colours are the classes c0 to c7 and c8, of which the last is for what belongs to none.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "inspect/treemap.h"
#include "report/html/html_report.h"

namespace dsckpt {

inline constexpr size_t kColours = 8;

// "c3"; kColours and more repeat the first ones.
std::string colour_class(size_t index);

// "dp 3 mp 0"
std::string rank_name(const RankShare& rank);

// Colours of kinds of bytes: one each for the largest, c8 for the others.
class KindColours {
 public:
  explicit KindColours(const std::vector<BytesOfKind>& kinds);
  std::string of(const std::string& kind) const;

 private:
  std::map<std::string, std::string> classes_;
};

// One bar, cut in proportion to the amounts. All of its length is `whole` bytes.
std::string stacked_bar(const std::vector<BytesOfKind>& amounts, uint64_t whole,
                        const KindColours& colours, double height);

// Some things of one sort.
struct ColouredPart {
  std::string what;  // text
  std::string colour;
  uint64_t count = 0;
};
// One bar, cut in proportion to the counts; `label` says what of.
std::string counted_bar(const std::vector<ColouredPart>& parts, const std::string& label,
                        double height);

// A column for each rank, from 0 to `top` bytes; what is higher is cut off under a cap. If they are
// many, one for ranks_a_column() neighbours: that of the least of them, and pale on top what the
// largest has more.
std::string columns_chart(const std::vector<RankShare>& ranks, uint64_t top,
                          const KindColours& colours);
size_t ranks_a_column(size_t ranks);

std::string treemap_chart(const Treemap& map);

// Octaves of size that hold nearly all elements of some tensors, so that their charts have one
// axis.
struct Octaves {
  size_t first = 0;  // bins of Histogram
  size_t end = 0;    // 0: there is no element to show
};
Octaves octaves_of(const std::vector<HtmlReport::Distribution>& distributions);
// How many elements there are of each size: negative ones on the left, the largest outermost, zeros
// in the middle, positive ones on the right. With `axis`, the values are written below.
std::string histogram_chart(const Statistics& values, const Octaves& octaves, bool axis);

// The elements from first to last as a bar, each part in the colour of its file. Parts that lie in
// turns, such as the columns of a matrix that ranks share, are above each other; copies have a bar
// of their own. `colours` has that of each extent.
std::string shard_bar(const HtmlReport::ShardMap& map, const std::vector<size_t>& colours);

// The same of many parts, as a strip of `count` equal steps: each as dark as its file is late among
// `files`, so that what is not in order, or not even, shows. `file_of` has the number of the file
// of each extent.
std::string shard_strip(const HtmlReport::ShardMap& map, const std::vector<size_t>& file_of,
                        size_t files, size_t count);
// "d3": one of ten shades, for number `index` of `count`.
std::string shade_class(size_t index, size_t count);

}  // namespace dsckpt
