#include "report/html/charts.h"

#include <algorithm>
#include <cmath>
#include <span>

#include "base/text.h"
#include "report/html/text.h"
#include "report/report.h"
#include "report/values.h"

namespace dsckpt {
namespace {

std::string attribute(const char* name, const std::string& value) {
  return std::string(" ") + name + "=\"" + value + "\"";
}

// In percent. The digits are exact to a thousandth of a pixel.
std::string part(double share) {
  return decimal(100 * share, 5) + "%";
}

std::string title(const std::string& escaped) {
  return "<title>" + escaped + "</title>";
}

// A rectangle that stands on `bottom`. x and width are parts of the chart's width, the rest is in
// pixels.
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

std::string counted_bar(const std::vector<ColouredPart>& parts, const std::string& label,
                        double height) {
  uint64_t whole = 0;
  for (const ColouredPart& each : parts) whole += each.count;
  std::string content;
  uint64_t before = 0;
  for (const ColouredPart& each : parts) {
    if (each.count == 0) continue;
    content += "<g>" + title(html_text(each.what) + ": " + grouped(each.count)) +
               column(share_of(before, whole), share_of(each.count, whole), height, height,
                      "part " + each.colour) +
               "</g>";
    before += each.count;
  }
  return svg("bar", height, label, content);
}

namespace {

constexpr double kColumnsHeight = 120;
constexpr double kCapHeight = 6;

std::string column_title(std::span<const RankShare> ranks, uint64_t least, uint64_t most) {
  const std::string first = rank_name(ranks.front());
  if (ranks.size() == 1) return title(first + ": " + human_bytes(least));
  return title(first + " to " + rank_name(ranks.back()) + ": " + human_bytes(least) + " to " +
               human_bytes(most));
}

// The column of neighbouring ranks. `x` and `width` are parts of the chart's width; `top` is the
// chart's height in bytes.
std::string ranks_column(std::span<const RankShare> ranks, double x, double width, uint64_t top,
                         const KindColours& colours) {
  const auto [least, most] = std::minmax_element(
      ranks.begin(), ranks.end(), [](const auto& a, const auto& b) { return a.bytes < b.bytes; });
  const auto height = [&](uint64_t bytes) {
    return std::min(share_of(bytes, top), 1.0) * kColumnsHeight;
  };
  std::string out = "<g>" + column_title(ranks, least->bytes, most->bytes);
  uint64_t below = 0;
  const auto add = [&](uint64_t bytes, const std::string& classes) {
    const double from = height(below);
    below += bytes;
    if (height(below) > from) {
      out += column(x, width, kColumnsHeight - from, height(below) - from, classes);
    }
  };
  for (const BytesOfKind& amount : least->kinds) add(amount.bytes, colours.of(amount.kind));
  if (most->bytes > below) add(most->bytes - below, "c0 pale");
  if (most->bytes > top) out += column(x, width, kCapHeight, kCapHeight, "cap");
  return out + "</g>";
}

}  // namespace

size_t ranks_a_column(size_t ranks) {
  constexpr size_t kMaxColumns = 96;
  return (ranks + kMaxColumns - 1) / kMaxColumns;
}

std::string columns_chart(const std::vector<RankShare>& ranks, uint64_t top,
                          const KindColours& colours) {
  constexpr size_t kWithGaps = 48;  // columns; more leave no room for gaps
  const size_t each = ranks_a_column(ranks.size());
  const double slot = static_cast<double>(each) / static_cast<double>(ranks.size());
  const double part_of_slot = ranks.size() / each > kWithGaps ? 1 : 0.8;
  std::string content;
  for (size_t begin = 0; begin < ranks.size(); begin += each) {
    const std::span<const RankShare> some(&ranks[begin], std::min(each, ranks.size() - begin));
    const double x = static_cast<double>(begin) / static_cast<double>(ranks.size());
    content += ranks_column(some, x, std::min(part_of_slot * slot, 1 - x), top, colours);
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

// The bins of a chart from left to right. Values below the first octave count as zeros.
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

// Labels at some powers of ten, on both sides of zero.
std::string axis_labels(const Octaves& octaves, double y) {
  const double bins = static_cast<double>(octaves.end - octaves.first);
  const double low = static_cast<double>(octaves.first) + Histogram::kFirstExponent;
  const double high = static_cast<double>(octaves.end) + Histogram::kFirstExponent;
  const double octaves_a_decade = std::log2(10.0);
  constexpr double kLabels = 4;  // at most, on each side
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
  // The histogram is one path, stretched to the available width. Its units are bins and pixels.
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
             "number of values of each size", drawing);
}

namespace {

constexpr uint32_t kMaxCopies = 8;

std::string extent_title(const HtmlReport::Extent& part) {
  const TensorExtent& extent = part.extent;
  const uint64_t elements = static_cast<uint64_t>(extent.row_elements) * extent.rows;
  return title(html_text(part.file) + ": " + grouped_count(elements, "element") + " from " +
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
  int64_t turn_first = 0;  // first element of the interleaved parts around the current one
  int64_t turn_step = 0;
  for (size_t i = 0; i < map.extents.size(); ++i) {
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

std::string shade_class(size_t index, size_t count) {
  constexpr size_t kShades = 10;
  return "d" + std::to_string(count == 0 ? 0 : index * kShades / count);
}

std::string shard_strip(const HtmlReport::ShardMap& map, const std::vector<size_t>& file_of,
                        size_t files, size_t count) {
  constexpr double kHeight = 44;
  // The parts that begin in each step. A step without any continues the parts before it.
  std::vector<std::vector<size_t>> steps(count);
  const auto whole = static_cast<double>(count);
  const auto elements = static_cast<double>(std::max<int64_t>(map.elements, 1));
  for (size_t i = 0; i < map.extents.size(); ++i) {
    const double at = static_cast<double>(map.extents[i].extent.first) / elements;
    steps[std::min(static_cast<size_t>(at * whole), count - 1)].push_back(i);
  }
  std::string content;
  size_t before = 0;
  const auto add = [&](size_t first, size_t end, const std::vector<size_t>& parts) {
    const size_t middle = parts.empty() ? before : parts[parts.size() / 2];
    const std::string names = parts.size() < 2
                                  ? html_text(map.extents[middle].file)
                                  : grouped_count(parts.size(), "part") + ", from " +
                                        html_text(map.extents[parts.front()].file) + " to " +
                                        html_text(map.extents[parts.back()].file);
    content += "<g>" + title(names) +
               column(static_cast<double>(first) / whole, static_cast<double>(end - first) / whole,
                      kHeight, kHeight, shade_class(file_of[middle], files)) +
               "</g>";
    if (!parts.empty()) before = parts.back();
  };
  for (size_t first = 0; first < count;) {
    size_t end = first + 1;
    while (end < count && steps[end].empty()) ++end;
    add(first, end, steps[first]);
    first = end;
  }
  return svg("bar strip", kHeight, "which file holds which elements", content);
}

}  // namespace dsckpt
