#include "cli/terminal.h"

#include <sys/ioctl.h>
#include <unistd.h>
#include <utf8proc.h>

#include <algorithm>
#include <cstdlib>
#include <numeric>
#include <string_view>
#include <utility>

#include "base/unicode.h"

namespace dsckpt::cli {
namespace {

constexpr size_t kGap = 2;
constexpr size_t kLeastNamed = 16;
constexpr size_t kLeastText = 8;

ColourMode colour_mode = ColourMode::automatic;

std::string_view variable(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

bool wants_colour(bool is_terminal) {
  if (colour_mode != ColourMode::automatic) return colour_mode == ColourMode::always;
  if (!variable("NO_COLOR").empty()) return false;
  const std::string_view force = variable("CLICOLOR_FORCE");
  if (!force.empty() && force != "0") return true;
  const std::string_view term = variable("TERM");
  return is_terminal && !term.empty() && term != "dumb";
}

Terminal terminal_of(int descriptor) {
  Terminal terminal;
  terminal.tables = ::isatty(descriptor) == 1;
  terminal.colour = wants_colour(terminal.tables);
  if (!terminal.tables) return terminal;
  winsize size{};
  if (::ioctl(descriptor, TIOCGWINSZ, &size) == 0 && size.ws_col > 0) {
    terminal.width = size.ws_col;
  } else if (const long columns = std::strtol(variable("COLUMNS").data(), nullptr, 10);
             columns > 0) {
    terminal.width = static_cast<size_t>(columns);
  }
  return terminal;
}

struct Character {
  size_t size;     // bytes, with the combining marks that follow
  size_t columns;  // 0: marks that follow nothing
};

bool is_ascii(const std::string& text) {
  return std::all_of(text.begin(), text.end(), [](char c) { return (c & 0x80) == 0; });
}

// Of any locale, and without one: what the C library knows lies in files that may not be there.
std::vector<Character> characters_of(std::string_view text) {
  std::vector<Character> characters;
  while (!text.empty()) {
    const size_t before = text.size();
    const auto code = static_cast<utf8proc_int32_t>(next_character(text));
    const size_t size = before - text.size();
    const bool is_control = utf8proc_category(code) == UTF8PROC_CATEGORY_CC;
    const auto columns = static_cast<size_t>(is_control ? 1 : utf8proc_charwidth(code));
    if (columns == 0 && !characters.empty()) {
      characters.back().size += size;
    } else {
      characters.push_back({size, columns});
    }
  }
  return characters;
}

size_t sum_of(const std::vector<Character>& characters) {
  return std::accumulate(characters.begin(), characters.end(), size_t{0},
                         [](size_t sum, const Character& c) { return sum + c.columns; });
}

// How many bytes of the characters from `first` on fit into `columns`.
template <class Iterator>
size_t bytes_that_fit(Iterator first, Iterator last, size_t columns) {
  size_t bytes = 0;
  for (; first != last && first->columns <= columns; ++first) {
    columns -= first->columns;
    bytes += first->size;
  }
  return bytes;
}

}  // namespace

void set_colour_mode(ColourMode mode) {
  colour_mode = mode;
}

Terminal Terminal::of_stdout() {
  return terminal_of(STDOUT_FILENO);
}

Terminal Terminal::of_stderr() {
  return terminal_of(STDERR_FILENO);
}

std::string styled(const Terminal& terminal, Style style, const std::string& text) {
  if (!terminal.colour || style == Style::plain) return text;
  const auto code = [&] {
    switch (style) {
      case Style::bold:
        return "1";
      case Style::dim:
        return "2";
      case Style::good:
        return "32";
      case Style::warning:
        return "33";
      case Style::bad:
        return "31";
      case Style::plain:
        break;
    }
    return "0";
  }();
  return "\x1b[" + std::string(code) + "m" + text + "\x1b[0m";
}

size_t columns_of(const std::string& text) {
  return is_ascii(text) ? text.size() : sum_of(characters_of(text));
}

std::string shortened(const std::string& text, size_t columns) {
  if (columns_of(text) <= columns) return text;
  const std::vector<Character> characters = characters_of(text);
  const size_t front = (columns - 1) / 2;
  const size_t head = bytes_that_fit(characters.begin(), characters.end(), front);
  const size_t tail = bytes_that_fit(characters.rbegin(), characters.rend(), columns - 1 - front);
  return text.substr(0, head) + "…" + text.substr(text.size() - tail);
}

std::vector<std::string> wrapped(const std::string& text, size_t width) {
  std::vector<std::string> lines(1);
  for (size_t at = 0; at < text.size();) {
    const size_t end = std::min(text.find_first_of(" \n", at), text.size());
    const std::string word = text.substr(at, end - at);
    at = end + 1;
    if (word.empty()) continue;
    if (!lines.back().empty() && columns_of(lines.back()) + 1 + columns_of(word) > width) {
      lines.emplace_back();
    }
    lines.back() += (lines.back().empty() ? "" : " ") + word;
  }
  return lines;
}

void Table::add(std::vector<std::string> cells, Style style) {
  cells.resize(columns_.size());
  rows_.push_back({std::move(cells), style});
}

std::string Table::text(const Terminal& terminal) const {
  if (!terminal.tables) return tabs(terminal);
  const std::vector<size_t> wide = widths(terminal.width);
  std::vector<std::string> headings;
  for (const Column& column : columns_) headings.push_back(column.heading);
  const auto one = [&](Style style, const std::vector<std::string>& cells) {
    return styled(terminal, style, shortened(line(cells, wide), terminal.width)) + "\n";
  };
  std::string out = one(Style::bold, headings);
  for (const Row& row : rows_) out += one(row.style, row.cells);
  return out;
}

std::string Table::tabs(const Terminal& terminal) const {
  std::string out;
  for (const Row& row : rows_) {
    std::string fields;
    for (size_t i = 0; i < row.cells.size(); ++i) fields += (i == 0 ? "" : "\t") + row.cells[i];
    out += styled(terminal, row.style, fields) + "\n";
  }
  return out;
}

std::vector<size_t> Table::widths(size_t width) const {
  std::vector<size_t> wide;
  for (size_t i = 0; i < columns_.size(); ++i) {
    size_t widest = columns_of(columns_[i].heading);
    for (const Row& row : rows_) widest = std::max(widest, columns_of(row.cells[i]));
    wide.push_back(widest);
  }
  if (wide.empty()) return wide;
  const size_t gaps = kGap * (wide.size() - 1);
  size_t total = std::accumulate(wide.begin(), wide.end(), gaps);

  // Takes what is too much from the widest of some columns, none of them below `least`.
  const auto shrink = [&](size_t least, const auto& may) {
    while (total > width) {
      size_t widest = wide.size();
      for (size_t i = 0; i < wide.size(); ++i) {
        if (!may(columns_[i]) || wide[i] <= least) continue;
        if (widest == wide.size() || wide[i] > wide[widest]) widest = i;
      }
      if (widest == wide.size()) return;
      --wide[widest];
      --total;
    }
  };
  shrink(kLeastNamed, [](const Column& column) { return column.shrinks; });
  shrink(kLeastText,
         [](const Column& column) { return column.align == Align::left && !column.shrinks; });
  shrink(1, [](const Column&) { return true; });
  return wide;
}

std::string Table::line(const std::vector<std::string>& cells,
                        const std::vector<size_t>& widths) const {
  std::string text;
  for (size_t i = 0; i < cells.size(); ++i) {
    const std::string cell = shortened(cells[i], widths[i]);
    const std::string fill(widths[i] - std::min(widths[i], columns_of(cell)), ' ');
    text += i == 0 ? "" : std::string(kGap, ' ');
    text += columns_[i].align == Align::left ? cell + fill : fill + cell;
  }
  text.erase(text.find_last_not_of(' ') + 1);
  return text;
}

}  // namespace dsckpt::cli
