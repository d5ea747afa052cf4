#include "report/html/page.h"

#include <algorithm>
#include <map>
#include <numeric>

#include "inspect/treemap.h"
#include "report/html/charts.h"
#include "report/html/style.h"
#include "report/html/text.h"
#include "report/report.h"
#include "report/values.h"

namespace dsckpt {
namespace {

using Fact = HtmlReport::Fact;
using Distribution = HtmlReport::Distribution;

constexpr size_t kMaxLines = 100;  // of facts, notes and kinds

// A cell of a table, whose content is HTML.
std::string cell(const std::string& html) {
  return "<td>" + html + "</td>";
}
std::string number(const std::string& html) {
  return "<td class=\"n\">" + html + "</td>";
}
std::string row_name(const std::string& html) {
  return "<th scope=\"row\">" + html + "</th>";
}
std::string heading(const std::string& html, bool is_number = false) {
  return std::string("<th scope=\"col\"") + (is_number ? " class=\"n\"" : "") + ">" + html +
         "</th>";
}

std::string row(const std::string& cells) {
  return "<tr>" + cells + "</tr>\n";
}

std::string table(const std::string& headings, const std::string& rows,
                  const std::string& classes = "plain") {
  const std::string head = headings.empty() ? "" : "<thead>" + row(headings) + "</thead>\n";
  return "<div class=\"scroll\"><table class=\"" + classes + "\">\n" + head + "<tbody>\n" + rows +
         "</tbody>\n</table></div>\n";
}

// A dotted name, which may be broken after its dots.
std::string dotted_name(const std::string& name) {
  std::string out;
  for (const char c : html_text(name)) out += c == '.' ? ".<wbr>" : std::string(1, c);
  return out;
}

std::string paragraph(const std::string& html) {
  return "<p>" + html + "</p>\n";
}

std::string section(const std::string& id, const std::string& title, const std::string& content) {
  return "<section id=\"" + id + "\">\n<h2>" + title + "</h2>\n" + content + "</section>\n";
}

std::string key(const std::string& colour) {
  return "<span class=\"key " + colour + "\"></span>";
}

std::string bytes_cell(uint64_t bytes) {
  return "<td class=\"n\" data-bytes=\"" + std::to_string(bytes) + "\" title=\"" + grouped(bytes) +
         " bytes\">" + human_bytes(bytes) + "</td>";
}

std::string facts_list(const std::string& classes, const std::vector<Fact>& facts) {
  if (facts.empty()) return "";
  std::string out = "<dl class=\"" + classes + "\">\n";
  for (size_t i = 0; i < facts.size() && i < kMaxLines; ++i) {
    out += "<div><dt>" + html_text(facts[i].label) + "</dt><dd>" + html_text(facts[i].value, 2000) +
           "</dd></div>\n";
  }
  return out + "</dl>\n";
}

std::string text_list(const std::string& classes, const std::vector<std::string>& lines) {
  if (lines.empty()) return "";
  std::string out = "<ul class=\"" + classes + "\">\n";
  for (size_t i = 0; i < lines.size() && i < kMaxLines; ++i) {
    out += "<li>" + html_text(lines[i], 2000) + "</li>\n";
  }
  return out + "</ul>\n";
}

uint64_t sum_of(const std::vector<BytesOfKind>& amounts) {
  return std::accumulate(
      amounts.begin(), amounts.end(), uint64_t{0},
      [](uint64_t sum, const BytesOfKind& amount) { return sum + amount.bytes; });
}

std::string about(const HtmlReport& report) {
  const std::string content = facts_list("facts", report.facts) + text_list("notes", report.notes);
  return content.empty() ? "" : section("facts", "What it is", content);
}

std::string kinds(const std::vector<BytesOfKind>& amounts, const KindColours& colours) {
  if (amounts.empty()) return "";
  constexpr double kHeight = 36;
  const uint64_t total = sum_of(amounts);
  std::string rows;
  for (size_t i = 0; i < amounts.size() && i < kMaxLines; ++i) {
    rows += row(row_name(key(colours.of(amounts[i].kind)) + html_text(amounts[i].kind)) +
                bytes_cell(amounts[i].bytes) + number(percent(amounts[i].bytes, total)));
  }
  return section(
      "kinds", "What the bytes are",
      paragraph(human_bytes(total) + " on disk, by what they hold.") +
          stacked_bar(amounts, total, colours, kHeight) +
          table(heading("kind") + heading("bytes", true) + heading("share", true), rows));
}

std::string rank_rows(const std::vector<RankShare>& ranks, uint64_t most,
                      const KindColours& colours) {
  constexpr double kHeight = 14;
  std::string rows;
  for (const RankShare& rank : ranks) {
    rows += row(row_name(rank_name(rank)) + bytes_cell(rank.bytes) + "<td class=\"wide\">" +
                stacked_bar(rank.kinds, most, colours, kHeight) + "</td>");
  }
  return table("", rows);
}

std::string rank_columns(const std::vector<RankShare>& ranks, const KindColours& colours) {
  return columns_chart(ranks, colours) + "<p class=\"ends\"><span>" + rank_name(ranks.front()) +
         "</span><span>" + rank_name(ranks.back()) + "</span></p>\n";
}

std::string balance_text(const std::vector<RankShare>& ranks, const RankShare& least,
                         const RankShare& most) {
  uint64_t sum = 0;
  for (const RankShare& rank : ranks) sum += rank.bytes;
  const uint64_t mean = sum / ranks.size();
  const std::string text = grouped(ranks.size()) + " ranks, " + human_bytes(mean) + " on average. ";
  if (least.bytes == most.bytes) return text + "All have the same.";
  return text + "Least: " + rank_name(least) + " with " + human_bytes(least.bytes) +
         ". Most: " + rank_name(most) + " with " + human_bytes(most.bytes) + ", " +
         percent(most.bytes - mean, mean) + " above the average.";
}

std::string ranks(const std::vector<RankShare>& ranks, const KindColours& colours) {
  if (ranks.empty()) return "";
  constexpr size_t kRows = 16;
  const auto [least, most] =
      std::minmax_element(ranks.begin(), ranks.end(),
                          [](const RankShare& a, const RankShare& b) { return a.bytes < b.bytes; });
  return section("ranks", "Balance over ranks",
                 paragraph(balance_text(ranks, *least, *most)) +
                     (ranks.size() > kRows ? rank_columns(ranks, colours)
                                           : rank_rows(ranks, most->bytes, colours)));
}

std::string legend_entry(const std::string& colour, const std::string& name, uint64_t bytes,
                         uint64_t whole) {
  return "<li>" + key(colour) + name + " <span class=\"sub\">" + human_bytes(bytes) + ", " +
         percent(bytes, whole) + "</span></li>\n";
}

std::string modules(const std::optional<TreeNode>& root) {
  // Below 200 square pixels of the largest map nothing can be told apart.
  constexpr double kAspect = 1000.0 / 560;
  constexpr double kSmallest = 200.0 / (1000 * 560);
  if (!root || root->bytes == 0) return "";
  const Treemap map = treemap_of(*root, kAspect, kSmallest);
  std::string legend;
  for (size_t i = 0; i < map.groups.size(); ++i) {
    const MapGroup& group = map.groups[i];
    legend += legend_entry(colour_class(i), html_text(group.name.empty() ? "all" : group.name),
                           group.bytes, map.bytes);
  }
  if (map.rest.bytes > 0) legend += legend_entry("c8", "others", map.rest.bytes, map.bytes);
  return section("modules", "Where they are in the model",
                 paragraph(grouped(map.tensors) + " tensors, " + human_bytes(map.bytes) +
                           ". Areas are in proportion to bytes; layers that are alike are one.") +
                     "<ul class=\"legend\">\n" + legend + "</ul>\n" + treemap_chart(map));
}

std::string count_cell(uint64_t count, bool bad) {
  if (count == 0) return number("0");
  return bad ? "<td class=\"n bad\">" + grouped(count) + "</td>" : number(grouped(count));
}

std::string distribution_row(const Distribution& distribution, const Octaves& octaves) {
  const Statistics& values = distribution.values;
  return row("<th scope=\"row\" class=\"mono\">" + dotted_name(distribution.tensor) +
             "<br><span class=\"sub\">" + html_text(distribution.type) + "</span></th>" +
             cell(histogram_chart(values, octaves, false)) + number(short_number(values.min)) +
             number(short_number(values.max)) + number(short_number(values.mean)) +
             number(short_number(values.standard_deviation())) +
             number(short_number(values.norm())) + number(percent(values.zeros, values.count)) +
             count_cell(values.nans, true) + count_cell(values.infinities(), true));
}

std::string distribution_table(const std::vector<Distribution>& tensors) {
  constexpr size_t kRows = 200;
  const Octaves octaves = octaves_of(tensors);
  std::string rows;
  for (size_t i = 0; i < tensors.size() && i < kRows; ++i) {
    rows += distribution_row(tensors[i], octaves);
  }
  std::string headings = heading("tensor") + heading("sizes");
  for (const char* name : {"min", "max", "mean", "std", "norm", "zeros", "NaN", "Inf"}) {
    headings += heading(name, true);
  }
  const std::string left_out =
      tensors.size() > kRows ? paragraph("And " + grouped(tensors.size() - kRows) + " more.") : "";
  return table(headings, rows, "dense") + left_out;
}

std::string distributions(const HtmlReport& report) {
  if (report.totals.empty() && report.tensors.empty()) return "";
  std::string content = paragraph(
      "How many values there are of each size: the axis is logarithmic on both sides of zero.");
  for (const Distribution& total : report.totals) {
    content += "<h3>" + html_text(total.tensor) + "</h3>\n" +
               paragraph("<span class=\"sub\">" + html_text(total.type) + "</span>") +
               histogram_chart(total.values, octaves_of({total}), true);
  }
  if (!report.tensors.empty()) content += distribution_table(report.tensors);
  return section("values", "Values", content);
}

std::string where_cells(const HtmlReport::Extent& part, const std::string& colour) {
  const TensorExtent& extent = part.extent;
  const auto places = [](uint64_t first, uint64_t count, uint64_t rows, int64_t step) {
    const std::string range = grouped(first) + " + " + grouped(count);
    return rows == 1 ? range
                     : grouped(rows) + " × (" + range + "), every " +
                           grouped(static_cast<uint64_t>(step));
  };
  return row("<th scope=\"row\" class=\"mono\">" + key(colour) + html_text(part.file) + "</th>" +
             cell("<span class=\"mono\">" + html_text(extent.record) + "</span>") +
             number(places(static_cast<uint64_t>(extent.first),
                           static_cast<uint64_t>(extent.row_elements), extent.rows, extent.step)) +
             number(places(extent.offset, extent.row_bytes, extent.rows, extent.stride)));
}

std::string shard_map(const HtmlReport::ShardMap& map) {
  constexpr size_t kRows = 100;
  std::map<std::string, size_t> files;
  std::vector<size_t> colours;
  for (const HtmlReport::Extent& part : map.extents) {
    colours.push_back(files.try_emplace(part.file, files.size()).first->second);
  }
  std::string rows;
  for (size_t i = 0; i < map.extents.size() && i < kRows; ++i) {
    rows += where_cells(map.extents[i], colour_class(colours[i]));
  }
  std::string out =
      "<h3>" + html_text(map.tensor) + "</h3>\n" +
      paragraph(html_text(map.type) + ", " + grouped(static_cast<uint64_t>(map.elements)) +
                " elements in " + grouped(files.size()) +
                (files.size() == 1 ? " file" : " files")) +
      shard_bar(map, colours) +
      table(heading("file") + heading("record") + heading("elements: first + count", true) +
                heading("bytes: offset + length", true),
            rows);
  if (map.extents.size() > kRows) {
    out += paragraph("And " + grouped(map.extents.size() - kRows) + " more.");
  }
  return out;
}

std::string maps(const std::vector<HtmlReport::ShardMap>& tensors) {
  if (tensors.empty()) return "";
  std::string content =
      paragraph("The elements of a tensor from first to last, each in the colour of its file.");
  for (const HtmlReport::ShardMap& map : tensors) content += shard_map(map);
  return section("shards", "From elements to shards", content);
}

std::string estimate_row(const MemoryEstimate& estimate) {
  const bool cpu = !estimate.cpu_formula.empty();
  return row(
      row_name("ZeRO-" + std::to_string(estimate.stage)) + cell(html_text(estimate.offload)) +
      bytes_cell(estimate.gpu_bytes) + cell(html_text(estimate.gpu_formula)) +
      (cpu ? bytes_cell(estimate.cpu_bytes) : number("")) + cell(html_text(estimate.cpu_formula)));
}

std::string estimates(const HtmlReport& report) {
  if (report.estimates.empty()) return "";
  const Hardware& hardware = report.hardware;
  const uint64_t gpus = hardware.nodes * hardware.gpus_per_node;
  std::string rows;
  for (const MemoryEstimate& estimate : report.estimates) rows += estimate_row(estimate);
  return section(
      "memory", "Memory to go on",
      paragraph("With N = " + grouped(gpus) + (gpus == 1 ? " GPU" : " GPUs") +
                ", M = " + grouped(hardware.gpus_per_node) +
                " on a node; P parameters, L of the largest layer. Without activations.") +
          table(heading("stage") + heading("offload") + heading("a GPU", true) +
                    heading("formula") + heading("a node’s CPU", true) + heading("formula"),
                rows));
}

std::string conversions(const std::vector<Conversion>& conversions) {
  if (conversions.empty()) return "";
  std::string rows;
  for (const Conversion& conversion : conversions) {
    rows += row(
        row_name(html_text(conversion.what)) +
        cell("<code>" + html_text(conversion.tool) + "</code>") +
        cell(conversion.refusal.empty() ? "yes" : "no: " + html_text(conversion.refusal, 2000)));
  }
  return section("conversions", "What it can be made into",
                 table(heading("what") + heading("by") + heading("can it"), rows));
}

}  // namespace

std::string html_of(const HtmlReport& report) {
  const KindColours colours(report.kinds);
  const std::string title = html_text(report.title);
  // The policy lets the page have its own style and nothing else.
  return "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n"
         "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src "
         "'unsafe-inline'\">\n"
         "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n"
         "<meta name=\"color-scheme\" content=\"light dark\">\n<title>" +
         title + "</title>\n<style>" + std::string(html_style()) +
         "</style>\n</head>\n<body>\n<main>\n<header>\n<h1>" + title + "</h1>\n" +
         paragraph(html_text(report.subtitle)) + facts_list("headline", report.headline) +
         "</header>\n" + about(report) + kinds(report.kinds, colours) +
         ranks(report.ranks, colours) + modules(report.modules) + distributions(report) +
         maps(report.maps) + estimates(report) + conversions(report.conversions) +
         "</main>\n</body>\n</html>\n";
}

}  // namespace dsckpt
