#include <algorithm>
#include <cmath>

#include "base/text.h"
#include "report/html/charts.h"
#include "report/html/markup.h"
#include "report/html/sections.h"
#include "report/html/text.h"
#include "report/report.h"
#include "report/values.h"

namespace dsckpt {
namespace {

// A table has at most so many ranks; a chart shows more.
constexpr size_t kRankRows = 16;
constexpr size_t kOutliers = 8;
constexpr double kBarHeight = 14;

// The range of most ranks.
struct Usual {
  uint64_t median = 0;
  uint64_t least = 0;  // ranks outside [least, most] stand out
  uint64_t most = 0;

  bool has(const RankShare& rank) const { return rank.bytes >= least && rank.bytes <= most; }
};

// The range of the middle half, widened on both sides by four times its size, at least by a
// hundredth.
Usual usual_of(const std::vector<RankShare>& ranks) {
  std::vector<uint64_t> bytes;
  for (const RankShare& rank : ranks) bytes.push_back(rank.bytes);
  std::sort(bytes.begin(), bytes.end());
  const uint64_t low = bytes[bytes.size() / 4];
  const uint64_t high = bytes[bytes.size() * 3 / 4];
  const uint64_t median = bytes[bytes.size() / 2];
  const uint64_t room = std::max(4 * (high - low), median / 100);
  return {.median = median, .least = low - std::min(low, room), .most = high + room};
}

uint64_t distance(uint64_t a, uint64_t b) {
  return a < b ? b - a : a - b;
}

// "342 times the median", "+3.1 %".
std::string against(uint64_t bytes, uint64_t median) {
  if (median > 0 && bytes / median >= 2) {
    const double times = static_cast<double>(bytes) / static_cast<double>(median);
    return times < 10 ? decimal(times, 1) + " times"
                      : grouped_count(static_cast<uint64_t>(std::lround(times)), "time");
  }
  if (bytes == median) return "as the median";
  return (bytes < median ? "−" : "+") + percent(distance(bytes, median), median);
}

std::string rank_row(const RankShare& rank, const std::string& between, uint64_t whole,
                     const KindColours& colours) {
  return row(row_name(rank_name(rank)) + bytes_cell(rank.bytes) + between + "<td class=\"wide\">" +
             stacked_bar(rank.kinds, whole, colours, kBarHeight) + "</td>");
}

std::string all_rows(const std::vector<RankShare>& ranks, const KindColours& colours) {
  uint64_t most = 0;
  for (const RankShare& rank : ranks) most = std::max(most, rank.bytes);
  std::string rows;
  for (const RankShare& rank : ranks) rows += rank_row(rank, "", most, colours);
  return table("", rows, "ranks");
}

// The ranks that stand out, the furthest first. Each bar shows the kinds of their bytes.
std::string outliers(const std::vector<RankShare>& ranks, const Usual& usual,
                     const KindColours& colours) {
  std::vector<const RankShare*> found;
  for (const RankShare& rank : ranks) {
    if (!usual.has(rank)) found.push_back(&rank);
  }
  if (found.empty()) return "";
  std::stable_sort(found.begin(), found.end(), [&](const RankShare* a, const RankShare* b) {
    return distance(a->bytes, usual.median) > distance(b->bytes, usual.median);
  });
  std::string rows;
  for (size_t i = 0; i < found.size() && i < kOutliers; ++i) {
    const RankShare& rank = *found[i];
    rows += rank_row(rank, number(against(rank.bytes, usual.median)), rank.bytes, colours);
  }
  const std::string more =
      found.size() > kOutliers
          ? paragraph("And " + grouped(found.size() - kOutliers) + " more that stand out.")
          : "";
  return table(heading("stands out") + heading("bytes", true) + heading("of the median", true) +
                   heading("of what kinds"),
               rows, "ranks") +
         more;
}

std::string columns(const std::vector<RankShare>& ranks, const Usual& usual,
                    const KindColours& colours) {
  uint64_t top = 0;
  for (const RankShare& rank : ranks) {
    if (usual.has(rank)) top = std::max(top, rank.bytes);
  }
  const size_t each = ranks_a_column(ranks.size());
  const std::string what = each == 1
                               ? "a column is a rank"
                               : "a column is " + grouped_count(each, "rank") +
                                     ": the smallest, and in pale colour the excess of the largest";
  return paragraph("All in their order; " + what + ". The chart is " + human_bytes(top) +
                   " high; higher columns have a cap.") +
         columns_chart(ranks, top, colours) + "<p class=\"ends\"><span>" +
         rank_name(ranks.front()) + "</span><span>" + rank_name(ranks.back()) + "</span></p>\n";
}

std::string balance_text(const std::vector<RankShare>& ranks, const Usual& usual) {
  const auto [least, most] = std::minmax_element(
      ranks.begin(), ranks.end(), [](const auto& a, const auto& b) { return a.bytes < b.bytes; });
  const std::string count = grouped_count(ranks.size(), "rank");
  if (least->bytes == most->bytes) return count + ", all with " + human_bytes(most->bytes) + ".";
  if (most->bytes - least->bytes <= usual.median / 1000) {
    return count + ", all with " + human_bytes(usual.median) + " but for less than 0.1 %.";
  }
  std::string text = count + ", half of them with " + human_bytes(usual.median) +
                     " or more. Least: " + rank_name(*least) + " with " +
                     human_bytes(least->bytes) + ". Most: " + rank_name(*most) + " with " +
                     human_bytes(most->bytes) + ".";
  const auto usually = static_cast<size_t>(
      std::count_if(ranks.begin(), ranks.end(), [&](const RankShare& r) { return usual.has(r); }));
  if (ranks.size() <= kRankRows || usually == ranks.size()) return text;
  return text + " " + grouped(ranks.size() - usually) +
         (ranks.size() - usually == 1 ? " stands out." : " stand out.");
}

}  // namespace

std::string ranks_section(const std::vector<RankShare>& ranks, const KindColours& colours) {
  if (ranks.empty()) return "";
  const Usual usual = usual_of(ranks);
  const std::string shown = ranks.size() <= kRankRows
                                ? all_rows(ranks, colours)
                                : outliers(ranks, usual, colours) + columns(ranks, usual, colours);
  return section("ranks", "Balance over ranks", paragraph(balance_text(ranks, usual)) + shown);
}

}  // namespace dsckpt
