#include "report/html/charts.h"

#include <algorithm>
#include <cmath>
#include <span>

#include "report/html/text.h"
#include "report/report.h"
#include "report/values.h"

namespace dsckpt {
namespace {

std::string attribute(const char* name, const std::string& value) {
  return std::string(" ") + name + "=\"" + value + "\"";
}

// In percent, with digits enough for a thousandth of a pixel.
std::string part(double share) {
  return decimal(100 * share, 5) + "%";
}

std::string title(const std::string& escaped) {
  return "<title>" + escaped + "</title>";
}

// A rectangle that stands on `bottom`; all in pixels, but for x and width, which are shares.
std::string column(double x, double width, double bottom, double height,
                   const std::string& classes) {
  return "<rect" + attribute("class", classes) + attribute("x", part(x)) +
         attribute("width", part(width)) + attribute("y", decimal(bottom - height, 2)) +
         attribute("height", decimal(height, 2)) + "/>";
}

std::string svg(const std::string& classes, double height, const std::string& label,
                const std::string& content) {
  return "<svg" + attribute("class", classes) + attribute("role", "img") +
         attribute("aria-label", label) + attribute("width", "100%") +
         attribute("height", decimal(height, 0)) + ">" + content + "</svg>\n";
}

double share_of(uint64_t amount, uint64_t whole) {
  return whole == 0 ? 0 : static_cast<double>(amount) / static_cast<double>(whole);
}

}  // namespace

std::string colour_class(size_t index) {
  return "c" + std::to_string(index % kColours);
}

std::string rank_name(const RankShare& rank) {
  return "dp " + std::to_string(rank.dp) + " mp " + std::to_string(rank.mp);
}

KindColours::KindColours(const std::vector<BytesOfKind>& kinds) {
  std::vector<BytesOfKind> by_size = kinds;
  std::stable_sort(by_size.begin(), by_size.end(),
                   [](const auto& a, const auto& b) { return a.bytes > b.bytes; });
  for (size_t i = 0; i < by_size.size() && i < kColours; ++i) {
    classes_[by_size[i].kind] = colour_class(i);
  }
}

std::string KindColours::of(const std::string& kind) const {
  const auto found = classes_.find(kind);
  return found == classes_.end() ? "c8" : found->second;
}

std::string stacked_bar(const std::vector<BytesOfKind>& amounts, uint64_t whole,
                        const KindColours& colours, double height) {
  std::string content;
  uint64_t before = 0;
  for (const BytesOfKind& amount : amounts) {
    if (amount.bytes == 0) continue;
    content += "<g>" +
               title(html_text(amount.kind) + ": " + human_bytes(amount.bytes) + ", " +
                     percent(amount.bytes, whole)) +
               column(share_of(before, whole), share_of(amount.bytes, whole), height, height,
                      "part " + colours.of(amount.kind)) +
               "</g>";
    before += amount.bytes;
  }
  return svg("bar", height, "bytes by kind", content);
}

namespace {

constexpr double kColumnsHeight = 160;

std::string column_title(std::span<const RankShare> ranks, uint64_t least, uint64_t most) {
  const std::string first = rank_name(ranks.front());
  if (ranks.size() == 1) return title(first + ": " + human_bytes(least));
  return title(first + " to " + rank_name(ranks.back()) + ": " + human_bytes(least) + " to " +
               human_bytes(most));
}

// The column of some neighbours, `x` and `width` as parts of the chart, whose height is `top`
// bytes.
std::string ranks_column(std::span<const RankShare> ranks, double x, double width, uint64_t top,
                         const KindColours& colours) {
  const auto [least, most] = std::minmax_element(
      ranks.begin(), ranks.end(), [](const auto& a, const auto& b) { return a.bytes < b.bytes; });
  const auto height = [&](uint64_t bytes) { return share_of(bytes, top) * kColumnsHeight; };
  std::string out = "<g>" + column_title(ranks, least->bytes, most->bytes);
  uint64_t below = 0;
  for (const BytesOfKind& amount : least->kinds) {
    out += column(x, width, kColumnsHeight - height(below), height(amount.bytes),
                  colours.of(amount.kind));
    below += amount.bytes;
  }
  if (most->bytes > below) {
    out += column(x, width, kColumnsHeight - height(below), height(most->bytes - below), "c0 pale");
  }
  return out + "</g>";
}

}  // namespace

std::string columns_chart(const std::vector<RankShare>& ranks, const KindColours& colours) {
  constexpr size_t kMaxColumns = 96;
  const size_t each = (ranks.size() + kMaxColumns - 1) / kMaxColumns;
  const double slot = static_cast<double>(each) / static_cast<double>(ranks.size());
  uint64_t top = 0;
  for (const RankShare& rank : ranks) top = std::max(top, rank.bytes);
  std::string content;
  for (size_t begin = 0; begin < ranks.size(); begin += each) {
    const std::span<const RankShare> some(&ranks[begin], std::min(each, ranks.size() - begin));
    content += ranks_column(some, static_cast<double>(begin) / static_cast<double>(ranks.size()),
                            0.8 * slot, top, colours);
  }
  return svg("columns", kColumnsHeight, "bytes of each rank", content);
}

Octaves octaves_of(const std::vector<HtmlReport::Distribution>& distributions) {
  constexpr size_t kMost = 48;  // below that it is noise beside the largest
  Octaves out;
  for (const HtmlReport::Distribution& distribution : distributions) {
    const Histogram& histogram = distribution.values.histogram;
    for (size_t i = 0; i < histogram.positive.size(); ++i) {
      if (histogram.positive[i] + histogram.negative[i] == 0) continue;
      if (out.end == 0) out.first = i;
      out.first = std::min(out.first, i);
      out.end = std::max(out.end, i + 1);
    }
  }
  if (out.end - out.first > kMost) out.first = out.end - kMost;
  return out;
}

namespace {

// The bins of a chart from left to right. What is smaller than the first octave counts as zero.
std::vector<uint64_t> chart_bins(const Statistics& values, const Octaves& octaves) {
  const Histogram& histogram = values.histogram;
  std::vector<uint64_t> bins;
  for (size_t i = octaves.end; i-- > octaves.first;) bins.push_back(histogram.negative[i]);
  uint64_t middle = values.zeros;
  for (size_t i = 0; i < octaves.first; ++i)
    middle += histogram.negative[i] + histogram.positive[i];
  bins.push_back(middle);
  for (size_t i = octaves.first; i < octaves.end; ++i) bins.push_back(histogram.positive[i]);
  return bins;
}

// Powers of ten on both sides, a few of them.
std::string axis_labels(const Octaves& octaves, double y) {
  const double bins = static_cast<double>(octaves.end - octaves.first);
  const double low = static_cast<double>(octaves.first) + Histogram::kFirstExponent;
  const double high = static_cast<double>(octaves.end) + Histogram::kFirstExponent;
  const double octaves_a_decade = std::log2(10.0);
  constexpr double kLabels = 4;  // on a side, at most
  const double step = std::max(1.0, std::ceil((high - low) / octaves_a_decade / kLabels));
  const auto label = [&](double share, const std::string& text) {
    return "<text" + attribute("class", "tick") + attribute("x", part(share)) +
           attribute("y", decimal(y, 0)) + ">" + text + "</text>";
  };
  std::string out = label(0.5, "0");
  for (double decade = std::floor(high / octaves_a_decade); decade * octaves_a_decade > low + 1;
       decade -= step) {
    const double at = (bins + 1 + decade * octaves_a_decade - low) / (2 * bins + 1);
    if (at > 0.98) continue;  // no room for the text
    const std::string text = short_number(std::pow(10.0, decade));
    out += label(at, text) + label(1 - at, "−" + text);
  }
  return out;
}

}  // namespace

std::string histogram_chart(const Statistics& values, const Octaves& octaves, bool axis) {
  if (octaves.end == 0 || values.histogram.empty()) return "";
  const double height = axis ? 120 : 26;
  const std::vector<uint64_t> bins = chart_bins(values, octaves);
  const uint64_t top = std::max<uint64_t>(*std::max_element(bins.begin(), bins.end()), 1);
  // One path, in bins by pixels, stretched to the width there is.
  std::string path;
  for (size_t i = 0; i < bins.size(); ++i) {
    if (bins[i] == 0) continue;
    const double column = std::max(share_of(bins[i], top) * height, 0.5);
    path += "M" + std::to_string(i) + " " + decimal(height, 0) + "v-" + decimal(column, 1) +
            "h.9v" + decimal(column, 1) + "z";
  }
  std::string drawing =
      "<svg width=\"100%\"" + attribute("height", decimal(height, 0)) +
      attribute("viewBox", "0 0 " + std::to_string(bins.size()) + " " + decimal(height, 0)) +
      " preserveAspectRatio=\"none\"><path class=\"c0\"" + attribute("d", path) + "/></svg>";
  constexpr double kAxis = 20;
  if (axis) drawing += axis_labels(octaves, height + kAxis - 5);
  return svg(axis ? "histogram" : "small histogram", height + (axis ? kAxis : 0),
             "how many values there are of each size", drawing);
}

namespace {

constexpr size_t kMaxParts = 1000;
constexpr uint32_t kMaxCopies = 8;

std::string extent_title(const HtmlReport::Extent& part) {
  const TensorExtent& extent = part.extent;
  const uint64_t elements = static_cast<uint64_t>(extent.row_elements) * extent.rows;
  return title(html_text(part.file) + ": " + grouped(elements) + " elements from " +
               grouped(static_cast<uint64_t>(extent.first)) + ", at byte " +
               grouped(extent.offset));
}

}  // namespace

std::string shard_bar(const HtmlReport::ShardMap& map, const std::vector<size_t>& colours) {
  constexpr double kHeight = 44;
  constexpr double kGap = 6;
  const double elements = static_cast<double>(std::max<int64_t>(map.elements, 1));
  uint32_t copies = 0;
  std::string content;
  int64_t turn_first = 0;  // of the parts that lie in turns with the current one
  int64_t turn_step = 0;
  for (size_t i = 0; i < map.extents.size() && i < kMaxParts; ++i) {
    const TensorExtent& extent = map.extents[i].extent;
    if (extent.copy >= kMaxCopies) continue;
    copies = std::max(copies, extent.copy);
    if (extent.step == 0 || extent.step != turn_step || extent.first < turn_first ||
        extent.first >= turn_first + turn_step) {
      turn_first = extent.first;
      turn_step = extent.step;
    }
    const bool turns = extent.step > 0;
    const double all = static_cast<double>(extent.rows) *
                       static_cast<double>(turns ? extent.step : extent.row_elements);
    const double top =
        turns ? static_cast<double>(extent.first - turn_first) / static_cast<double>(extent.step)
              : 0;
    const double tall =
        turns ? static_cast<double>(extent.row_elements) / static_cast<double>(extent.step) : 1;
    const double bottom = extent.copy * (kHeight + kGap) + (top + tall) * kHeight;
    content += "<g>" + extent_title(map.extents[i]) +
               column(static_cast<double>(turns ? turn_first : extent.first) / elements,
                      all / elements, bottom, tall * kHeight, "part " + colour_class(colours[i])) +
               "</g>";
  }
  const double height = kHeight + copies * (kHeight + kGap);
  return svg("bar", height, "which file holds which elements", content);
}

}  // namespace dsckpt
