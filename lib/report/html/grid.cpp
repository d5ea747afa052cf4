#include <algorithm>

#include "base/text.h"
#include "report/html/markup.h"
#include "report/html/sections.h"
#include "report/html/text.h"
#include "report/values.h"

namespace dsckpt {
namespace {

// A table has at most so many stages and so many tensor-parallel ranks, the last of them too.
constexpr size_t kGridRows = 64;
constexpr size_t kGridColumns = 8;

// The numbers that are shown of `count`: the first ones and the last.
std::vector<size_t> shown_of(size_t count, size_t most) {
  std::vector<size_t> numbers;
  for (size_t i = 0; i < std::min(count, most); ++i) numbers.push_back(i);
  if (count > most) numbers.back() = count - 1;
  return numbers;
}

std::string elements_cell(const GridRank& rank, int64_t most) {
  const auto elements = static_cast<uint64_t>(rank.elements);
  return number(grouped(elements) + "<br><span class=\"sub\">" +
                percent(elements, static_cast<uint64_t>(most)) + "</span>");
}

}  // namespace

std::string grid_section(const std::vector<GridRank>& grid) {
  if (grid.empty()) return "";
  const size_t ranks = grid.back().tp_rank + size_t{1};
  const size_t stages = grid.size() / ranks;
  const std::vector<size_t> columns = shown_of(ranks, kGridColumns);
  int64_t most = 1;
  for (const GridRank& rank : grid) most = std::max(most, rank.elements);
  std::string headings = heading("stage") + heading("layers") + heading("tensors", true);
  for (const size_t rank : columns) headings += heading("tp " + std::to_string(rank), true);
  std::string rows;
  for (const size_t stage : shown_of(stages, kGridRows)) {
    const GridRank& first = grid[stage * ranks];
    std::string cells = row_name(std::to_string(stage)) + cell(html_text(first.layers)) +
                        number(grouped(first.params));
    for (const size_t rank : columns) cells += elements_cell(grid[stage * ranks + rank], most);
    rows += row(cells);
  }
  const std::string left_out = stages > kGridRows || ranks > kGridColumns
                                   ? " Of longer lines the first and the last are shown."
                                   : "";
  return section("grid", "Pipeline stages and tensor-parallel ranks",
                 paragraph(grouped_count(stages, "pipeline stage") + " of " +
                           grouped_count(ranks, "tensor-parallel rank") +
                           ": trained elements, and their share of the largest." + left_out) +
                     table(headings, rows));
}

}  // namespace dsckpt
