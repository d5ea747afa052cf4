#include "report/html/page.h"

#include <algorithm>
#include <numeric>

#include "base/text.h"
#include "inspect/treemap.h"
#include "report/html/charts.h"
#include "report/html/markup.h"
#include "report/html/sections.h"
#include "report/html/text.h"
#include "report/report.h"
#include "report/values.h"

namespace dsckpt {
namespace {

using Distribution = HtmlReport::Distribution;

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
  constexpr size_t kRows = 100;
  for (size_t i = 0; i < amounts.size() && i < kRows; ++i) {
    rows += row(row_name(key(colours.of(amounts[i].kind)) + html_text(amounts[i].kind)) +
                bytes_cell(amounts[i].bytes) + number(percent(amounts[i].bytes, total)));
  }
  return section(
      "kinds", "Bytes by kind",
      paragraph(human_bytes(total) + " on disk, by content.") +
          stacked_bar(amounts, total, colours, kHeight) +
          table(heading("kind") + heading("bytes", true) + heading("share", true), rows));
}

std::string legend_entry(const std::string& colour, const std::string& name, uint64_t bytes,
                         uint64_t whole) {
  return "<li>" + key(colour) + name + " <span class=\"sub\">" + human_bytes(bytes) + ", " +
         percent(bytes, whole) + "</span></li>\n";
}

std::string modules(const std::optional<TreeNode>& root) {
  // Areas below 200 square pixels of the largest map cannot be told apart.
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
                 paragraph(grouped_count(map.tensors, "tensor") + ", " + human_bytes(map.bytes) +
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
  // NaNs and infinities are of most interest.
  std::vector<const Distribution*> shown;
  for (const Distribution& each : tensors) shown.push_back(&each);
  std::stable_partition(shown.begin(), shown.end(), [](const Distribution* each) {
    return each->values.nans > 0 || each->values.infinities() > 0;
  });
  std::string rows;
  for (size_t i = 0; i < shown.size() && i < kRows; ++i) {
    rows += distribution_row(*shown[i], octaves);
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
      "The number of values of each size: the axis is logarithmic on both sides of zero.");
  for (const Distribution& total : report.totals) {
    content += "<h3>" + html_text(total.tensor) + "</h3>\n" +
               paragraph("<span class=\"sub\">" + html_text(total.type) + "</span>") +
               histogram_chart(total.values, octaves_of({total}), true);
  }
  if (!report.tensors.empty()) content += distribution_table(report.tensors);
  return section("values", "Values", content);
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
      "memory", "Memory to continue training",
      paragraph("With N = " + grouped_count(gpus, "GPU") +
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
        cell("<code>" +
             html_text(conversion.refusal.empty() ? conversion.command : conversion.tool) +
             "</code>") +
        cell(conversion.refusal.empty() ? "yes" : "no: " + html_text(conversion.refusal, 2000)));
  }
  return section("conversions", "Possible conversions",
                 table(heading("what") + heading("by") + heading("can it"), rows));
}

}  // namespace

std::string html_of(const HtmlReport& report) {
  const KindColours colours(report.kinds);
  // The most asked questions come first, and long lists of tensors and values last.
  return document(report.title, "<header>\n<h1>" + html_text(report.title) + "</h1>\n" +
                                    paragraph(html_text(report.subtitle)) +
                                    facts_list("headline", report.headline) + "</header>\n" +
                                    about(report) + kinds(report.kinds, colours) +
                                    ranks_section(report.ranks, colours) +
                                    grid_section(report.grid) + modules(report.modules) +
                                    estimates(report) + conversions(report.conversions) +
                                    distributions(report) + shards_section(report.maps));
}

}  // namespace dsckpt
