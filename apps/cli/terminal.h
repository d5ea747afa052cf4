// Text for people: colours and tables where there is a terminal, tabs and nothing else where not.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

namespace dsckpt::cli {

// --color. Automatic: NO_COLOR (no-color.org) says no, else CLICOLOR_FORCE says yes, else a
// terminal that is not dumb has colours.
enum class ColourMode { automatic, always, never };
// For the whole process; set while arguments are parsed.
void set_colour_mode(ColourMode mode);

// Where an output stream goes, as far as looks are concerned.
struct Terminal {
  bool tables = false;  // columns that line up, headings; else fields with tabs between them
  bool colour = false;
  size_t width = 80;  // columns

  // A terminal gets tables, and its width is its own, or COLUMNS.
  static Terminal of_stdout();
  static Terminal of_stderr();
};

enum class Style { plain, bold, dim, good, warning, bad };

// `text` in a style; as it is where there are no colours.
std::string styled(const Terminal& terminal, Style style, const std::string& text);

// How many columns of a terminal `text`, UTF-8, takes: two for a wide character, none for a
// combining mark, one for a byte that is no UTF-8.
size_t columns_of(const std::string& text);

// `text` in at most `columns` columns, at least one: its middle becomes "…" if it is longer.
std::string shortened(const std::string& text, size_t columns);

// Lines of at most `width` columns, as far as words allow, broken at spaces; a newline in `text` is
// a space. At least one line.
std::vector<std::string> wrapped(const std::string& text, size_t width);

// Rows under headings.
//
// On a terminal the columns line up, and no line is wider than the terminal: the column that was
// named for it is shortened in the middle ("layers.…weight") down to sixteen columns, then others
// on the left, at last also numbers, the widest first. Elsewhere rows are lines of fields with tabs
// between them, without headings, which `cut` and `awk` take.
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

  std::string tabs(const Terminal& terminal) const;
  // Of each column, such that a line fits into `width`.
  std::vector<size_t> widths(size_t width) const;
  std::string line(const std::vector<std::string>& cells, const std::vector<size_t>& widths) const;

  std::vector<Column> columns_;
  std::vector<Row> rows_;
};

}  // namespace dsckpt::cli
