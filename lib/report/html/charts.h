// The drawings of an HtmlReport: inline SVG that fills its width, with titles that appear under the
// pointer. Widths are in percent and heights in pixels, so text keeps its size in any window.
// Colours are the classes c0 to c7, and c8 for everything else.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "inspect/treemap.h"
#include "report/html/html_report.h"

namespace dsckpt {

inline constexpr size_t kColours = 8;

// "c3"; numbers from kColours on repeat the first colours.
std::string colour_class(size_t index);

// "dp 3 mp 0"
std::string rank_name(const RankShare& rank);

// Colours of kinds of bytes: one for each of the largest kinds, c8 for the others.
class KindColours {
 public:
  explicit KindColours(const std::vector<BytesOfKind>& kinds);
  std::string of(const std::string& kind) const;

 private:
  std::map<std::string, std::string> classes_;
};

// One bar, cut in proportion to the amounts. Its full length is `whole` bytes.
std::string stacked_bar(const std::vector<BytesOfKind>& amounts, uint64_t whole,
                        const KindColours& colours, double height);

// Things of one sort.
struct ColouredPart {
  std::string what;  // text
  std::string colour;
  uint64_t count = 0;
};
// One bar, cut in proportion to the counts; `label` names the things.
std::string counted_bar(const std::vector<ColouredPart>& parts, const std::string& label,
                        double height);

// A column for each rank, from 0 to `top` bytes; higher ones are cut off under a cap. If ranks are
// many, one column stands for ranks_a_column() neighbours. Its height is that of the smallest of
// them, with the difference to the largest in pale on top.
std::string columns_chart(const std::vector<RankShare>& ranks, uint64_t top,
                          const KindColours& colours);
size_t ranks_a_column(size_t ranks);

std::string treemap_chart(const Treemap& map);

// The octaves of size with nearly all elements of some tensors, so that their charts share an axis.
struct Octaves {
  size_t first = 0;  // bins of Histogram
  size_t end = 0;    // 0: there is no element to show
};
Octaves octaves_of(const std::vector<HtmlReport::Distribution>& distributions);
// The number of elements of each size: negative ones on the left, the largest outermost, zeros in
// the middle, positive ones on the right. With `axis`, the values are written below.
std::string histogram_chart(const Statistics& values, const Octaves& octaves, bool axis);

// The elements from first to last as a bar, each part in the colour of its file. Alternating parts,
// such as the columns of a matrix that ranks share, are above each other. Copies have bars of their
// own. `colours` has the colour of each extent.
std::string shard_bar(const HtmlReport::ShardMap& map, const std::vector<size_t>& colours);

// The same for many parts, as a strip of `count` equal steps. A step is darker the later its file
// comes among `files`, so disorder and uneven parts show. `file_of` has the number of each extent's
// file.
std::string shard_strip(const HtmlReport::ShardMap& map, const std::vector<size_t>& file_of,
                        size_t files, size_t count);
// "d3": one of ten shades, for number `index` of `count`.
std::string shade_class(size_t index, size_t count);

}  // namespace dsckpt
