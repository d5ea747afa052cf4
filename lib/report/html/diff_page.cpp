#include "report/html/diff_page.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <optional>

#include "base/text.h"
#include "inspect/diff_tree.h"
#include "report/html/charts.h"
#include "report/html/markup.h"
#include "report/html/text.h"
#include "report/report.h"
#include "report/values.h"

namespace dsckpt {
namespace {

constexpr size_t kTensors = 300;  // in the tree
constexpr size_t kFurthest = 12;  // in the table above the tree
constexpr size_t kAllOpen = 16;   // tensors; a smaller tree is open from the start

struct Words {
  const char* what;
  const char* colour;
};
// In the order of Verdict.
constexpr std::array<Words, kVerdicts> kWords{{{"bit-equal", "c2"},
                                               {"within the tolerance", "c5"},
                                               {"other values", "c1"},
                                               {"another type", "c4"},
                                               {"another shape", "c3"},
                                               {"only in A", "c0"},
                                               {"only in B", "c6"}}};

const Words& words_of(Verdict verdict) {
  return kWords[static_cast<size_t>(verdict)];
}

std::string side_card(const char* letter, const DiffPage::Side& side) {
  std::vector<HtmlReport::Fact> facts{{"form", side.form}};
  for (const auto& [label, text] : side.facts) facts.push_back({label, text});
  return "<div><h2><span class=\"letter\">" + std::string(letter) + "</span>" +
         html_text(side.path) + "</h2>\n" + facts_list("facts", facts) + "</div>\n";
}

std::string sides(const DiffPage& page) {
  return "<section id=\"sides\">\n<div class=\"sides\">\n" + side_card("A", page.a) +
         side_card("B", page.b) + "</div>\n" + text_list("notes", page.diff->notes) +
         "</section>\n";
}

std::string part_of(uint64_t part, uint64_t whole) {
  return part == whole && whole > 0 ? "100 %" : part == 0 ? "0" : percent(part, whole);
}

std::vector<HtmlReport::Fact> headline(const Diff& diff, const DiffNode& root) {
  std::vector<HtmlReport::Fact> facts{{"Tensors", grouped(root.count())},
                                      {"Differ", grouped(root.differing())}};
  if (diff.total.count > 0) {
    facts.push_back({"Elements that differ", part_of(diff.total.differing, diff.total.count)});
  }
  if (diff.total.differing > 0) {
    facts.push_back(
        {"Largest |a − b|", short_number(static_cast<double>(diff.total.max_absolute))});
  }
  return facts;
}

std::string verdict_bar(const DiffNode& node, double height) {
  std::vector<ColouredPart> parts;
  for (size_t i = 0; i < kVerdicts; ++i) {
    parts.push_back({kWords[i].what, kWords[i].colour, node.verdicts[i]});
  }
  return counted_bar(parts, "tensors by how they differ", height);
}

std::string verdicts(const DiffNode& root) {
  constexpr double kHeight = 36;
  std::string rows;
  for (size_t i = 0; i < kVerdicts; ++i) {
    if (root.verdicts[i] == 0) continue;
    rows +=
        row(row_name(key(kWords[i].colour) + kWords[i].what) + number(grouped(root.verdicts[i])) +
            number(part_of(root.verdicts[i], root.count())));
  }
  return section(
      "verdicts", "How they differ",
      verdict_bar(root, kHeight) +
          table(heading("tensors") + heading("count", true) + heading("share", true), rows));
}

std::string type_text(const std::optional<DType>& dtype, const std::optional<Shape>& shape) {
  return dtype ? std::string(torch_name(*dtype)) + " " + to_text(*shape) : "—";
}

// One side's type and shape, and its value where the sides differ most.
std::string side_cell(const TensorDiff& tensor, bool is_a) {
  const std::string type =
      is_a ? type_text(tensor.dtype_a, tensor.shape_a) : type_text(tensor.dtype_b, tensor.shape_b);
  if (tensor.values.differing == 0) return cell(html_text(type));
  return cell(html_text(type) + "<br><span class=\"mono\">" +
              difference_number(is_a ? tensor.values.a : tensor.values.b, *tensor.as) + "</span>");
}

std::string value_cells(const TensorDiff& tensor) {
  const Difference& values = tensor.values;
  if (values.differing == 0) return number("") + number("") + number("") + number("");
  return number(part_of(values.differing, values.count)) +
         "<td class=\"n strong\" title=\"at element " +
         grouped(static_cast<uint64_t>(std::max<int64_t>(values.index, 0))) + "\">" +
         difference_number(values.max_absolute, *tensor.as) + "</td>" +
         number(change_number(values, *tensor.as)) + number(cosine_number(values, *tensor.as));
}

std::string tensor_row(const TensorDiff& tensor, const std::string& name) {
  const Words& words = words_of(tensor.verdict);
  const std::string state =
      tensor.state.empty() ? "" : " <span class=\"sub\">" + html_text(tensor.state) + "</span>";
  return row("<th scope=\"row\" class=\"mono\">" + key(words.colour) + dotted_name(name) + state +
             "<br><span class=\"sub\">" + words.what + "</span></th>" + side_cell(tensor, true) +
             side_cell(tensor, false) + value_cells(tensor));
}

std::string tensor_headings() {
  std::string headings = heading("tensor") + heading("A") + heading("B");
  for (const char* name : {"elements", "max |a − b|", "change", "cosine"}) {
    headings += heading(name, true);
  }
  return headings;
}

std::string furthest(const Diff& diff) {
  std::string rows;
  size_t shown = 0;
  for (const TensorDiff* tensor : furthest_apart(diff)) {
    if (tensor->verdict == Verdict::equal || shown++ == kFurthest) break;
    rows += tensor_row(*tensor, tensor->name);
  }
  if (rows.empty()) return "";
  return section("furthest", "Furthest apart",
                 paragraph("The values below A’s and B’s type are those of the element that "
                           "differs most; elements are how many differ in at least a bit. Change "
                           "is |b − a| / |a| of the tensors as vectors.") +
                     table(tensor_headings(), rows, "dense pairs"));
}

// The tensor's name below the module with the path `above`.
std::string name_below(const TensorDiff& tensor, const std::string& above) {
  return above.empty() ? tensor.name : tensor.name.substr(above.size() + 1);
}

std::string node_summary(const DiffNode& node) {
  constexpr double kHeight = 10;
  const uint64_t differing = node.differing();
  const std::string text = differing == 0
                               ? "all " + grouped(node.count()) + " the same"
                               : grouped(differing) + " of " + grouped(node.count()) + " differ";
  const std::string most =
      node.total.differing == 0
          ? ""
          : "by up to " + short_number(static_cast<double>(node.total.max_absolute));
  return "<span class=\"node\"><span class=\"mono\">" + dotted_name(node.name) + "</span>" +
         verdict_bar(node, kHeight) + "<span class=\"n\">" + text + "</span><span class=\"n\">" +
         most + "</span></span>";
}

// "4 more are the same.", "12 more, 7 of them differ by less."
std::string left_out_text(const DiffNode& node) {
  uint64_t differing = node.differing();
  for (const DiffNode& child : node.children) differing -= child.differing();
  for (const TensorDiff* tensor : node.tensors) {
    if (tensor->verdict != Verdict::equal && tensor->verdict != Verdict::within) --differing;
  }
  const std::string more = grouped(node.left_out) + " more";
  if (differing == 0) return more + (node.left_out == 1 ? " is the same." : " are the same.");
  if (differing == node.left_out) return more + ", not shown, differ by less.";
  return more + ", not shown; " + grouped(differing) + " of them differ by less.";
}

std::string node_content(const DiffNode& node, const std::string& path, bool all_open) {
  std::string rows;
  for (const TensorDiff* tensor : node.tensors) {
    rows += tensor_row(*tensor, name_below(*tensor, path));
  }
  std::string out;
  for (const DiffNode& child : node.children) {
    const std::string below = path.empty() ? child.name : path + "." + child.name;
    out += details(node_summary(child), node_content(child, below, all_open),
                   all_open || child.holds_largest);
  }
  if (!rows.empty()) out += table("", rows, "dense pairs");
  if (node.left_out > 0) out += paragraph(left_out_text(node));
  return out;
}

std::string where(const DiffPage& page, const DiffNode& root) {
  if (root.children.empty() && root.tensors.empty()) return "";
  uint64_t shown = root.count();
  if (!page.all) shown -= root.verdicts[static_cast<size_t>(Verdict::equal)];
  const std::string bounded = shown > kTensors ? " The " + grouped_count(kTensors, "tensor") +
                                                     " that are furthest apart are in it."
                                               : "";
  return section(
      "where", "Where in the model",
      paragraph("Modules open with a click; the one with the largest difference is open." +
                bounded) +
          "<div class=\"tree\">\n" + table(tensor_headings(), "", "dense pairs head") +
          node_content(root, "", shown <= kAllOpen) + "</div>\n");
}

}  // namespace

std::string html_of(const DiffPage& page) {
  const Diff& diff = *page.diff;
  const DiffNode root = diff_tree(diff, page.all, kTensors);
  const std::string advice = page.advice.empty() ? "" : paragraph(html_text(page.advice, 2000));
  return document("Difference of " + page.a.path + " and " + page.b.path,
                  "<header>\n<h1>" + std::string(diff.same() ? "The same" : "What differs") +
                      "</h1>\n" + paragraph(html_text(page.verdict, 2000)) + advice +
                      facts_list("headline", headline(diff, root)) + "</header>\n" + sides(page) +
                      verdicts(root) + furthest(diff) + where(page, root));
}

}  // namespace dsckpt
