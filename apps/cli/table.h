// Rows under headings.
//
// On a terminal the columns line up, empty ones are left out, and no line is wider than the
// terminal. Numbers are never cut. If a table is too wide, these steps follow each other:
//   1. A common beginning of all names is removed ("model.layers."), and a line above has it.
//   2. The column that wraps continues in further lines.
//   3. Columns that may be left out go, those of the highest `rank` first, and a line names them.
//      This goes on until names have enough room, or three fifths of the line.
//   4. The parts of names are abbreviated ("l.11.attn.weight" for "layers.11.attn.weight"), as
//      long as names stay different.
//   5. The last columns go, and names are cut in the middle.
// Elsewhere rows are lines of fields with tabs between them, without headings, for `cut` and `awk`.
#pragma once

#include <cstddef>
#include <cstdint>
#include <iosfwd>
#include <string>
#include <vector>

#include "cli/terminal.h"

namespace dsckpt::cli {

class Table {
 public:
  enum class Align { left, right };
  struct Column {
    std::string heading;
    Align align = Align::left;
    bool named = false;  // holds the rows' names; one column at most
    uint8_t rank = 0;    // 0: shown as long as possible
    bool wraps = false;  // text, in the last column
  };

  explicit Table(std::vector<Column> columns) : columns_(std::move(columns)) {}
  // One cell a column.
  void add(std::vector<std::string> cells, Style style = Style::plain);
  // The same of a row whose name is none of the others' kind, such as a total.
  void add_total(std::vector<std::string> cells, Style style = Style::plain);
  bool empty() const { return rows_.empty(); }
  // Writes line by line, so no text of the whole table is in memory.
  void write(std::ostream& out, const Terminal& terminal) const;
  std::string text(const Terminal& terminal) const;

 private:
  struct Row {
    std::vector<std::string> cells;
    Style style;
    bool is_total = false;
  };
  class Fitting;

  void write_tabs(std::ostream& out, const Terminal& terminal) const;

  std::vector<Column> columns_;
  std::vector<Row> rows_;
};

// A cell: "1.50 GB" and "1,234" on a terminal, digits where programs read it.
std::string bytes_cell(const Terminal& terminal, uint64_t bytes);
std::string count_cell(const Terminal& terminal, uint64_t count);

}  // namespace dsckpt::cli
