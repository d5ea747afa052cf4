// Text for people: colours and tables on a terminal, only tabs elsewhere.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

namespace dsckpt::cli {

// --color. Automatic: NO_COLOR (no-color.org) turns colours off, else CLICOLOR_FORCE turns them on,
// else a terminal that is not dumb has them.
enum class ColourMode { automatic, always, never };
// For the whole process; set while arguments are parsed.
void set_colour_mode(ColourMode mode);

// The looks of an output stream.
struct Terminal {
  bool tables = false;  // columns that line up, headings; else fields with tabs between them
  bool colour = false;
  size_t width = 80;  // columns

  // A terminal gets tables, and its width is its own, or COLUMNS.
  static Terminal of_stdout();
  static Terminal of_stderr();
};

// True if drawings must be ASCII: the locale is C or POSIX, by LC_ALL, LC_CTYPE or LANG, the first
// that is set. Without any, characters are UTF-8. Names are shown unchanged.
bool wants_ascii();

enum class Style { plain, bold, dim, good, warning, bad };

// `text` in a style; unchanged without colours.
std::string styled(const Terminal& terminal, Style style, const std::string& text);

// The columns that `text`, UTF-8, takes on a terminal. A wide character takes two, a combining mark
// none, and a byte that is not UTF-8.
size_t columns_of(const std::string& text);

// `text` in at most `columns` columns, at least one: its middle becomes "…", or "..." of
// ASCII, if it is longer.
std::string shortened(const std::string& text, size_t columns);

// Lines of at most `width` columns, as far as words allow, broken at spaces; a newline in `text` is
// a space. At least one line.
std::vector<std::string> wrapped(const std::string& text, size_t width);

}  // namespace dsckpt::cli
