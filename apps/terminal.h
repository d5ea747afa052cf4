// Text for people: colours and tables where there is a terminal, tabs and nothing else where not.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

namespace dsckpt::cli {

// Where standard output goes, as far as looks are concerned.
struct Terminal {
  bool tables = false;  // columns that line up, headings; else fields with tabs between them
  bool colour = false;
  size_t width = 80;  // columns

  // What standard output is: a terminal gets tables, and colours unless NO_COLOR is set
  // (no-color.org) or TERM is dumb. The width is the terminal's own, or COLUMNS.
  static Terminal of_stdout();
};

enum class Style { plain, bold, dim, good, warning, bad };

// `text` in a style; as it is where there are no colours.
std::string styled(const Terminal& terminal, Style style, const std::string& text);

// How many columns of a terminal `text`, UTF-8, takes; wide characters count as one.
size_t columns_of(const std::string& text);

// Rows under headings.
//
// On a terminal the columns line up, and if a line is wider than the terminal, the column that was
// named for it is shortened in the middle ("layers.…weight"), down to sixteen columns. Elsewhere
// rows are lines of fields with tabs between them, without headings, which `cut` and `awk` take.
class Table {
 public:
  enum class Align { left, right };
  struct Column {
    std::string heading;
    Align align = Align::left;
    bool shrinks = false;  // one column at most
  };

  explicit Table(std::vector<Column> columns) : columns_(std::move(columns)) {}
  // One cell a column.
  void add(std::vector<std::string> cells, Style style = Style::plain);
  bool empty() const { return rows_.empty(); }
  std::string text(const Terminal& terminal) const;

 private:
  struct Row {
    std::vector<std::string> cells;
    Style style;
  };
  std::vector<Column> columns_;
  std::vector<Row> rows_;
};

}  // namespace dsckpt::cli
