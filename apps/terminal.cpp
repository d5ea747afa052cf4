#include "terminal.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <string_view>
#include <utility>

namespace dsckpt::cli {
namespace {

constexpr size_t kGap = 2;
constexpr size_t kLeastShrunk = 16;

bool is_continuation(char c) {
  return (static_cast<unsigned char>(c) & 0xC0) == 0x80;
}

// The first (or last) `columns` characters.
std::string first_of(const std::string& text, size_t columns) {
  size_t end = 0;
  for (; end < text.size(); ++end) {
    if (is_continuation(text[end])) continue;
    if (columns-- == 0) break;
  }
  return text.substr(0, end);
}

std::string last_of(const std::string& text, size_t columns) {
  size_t begin = text.size();
  while (begin > 0 && columns > 0) {
    --begin;
    if (!is_continuation(text[begin])) --columns;
  }
  return text.substr(begin);
}

std::string shortened(const std::string& text, size_t columns) {
  if (columns_of(text) <= columns) return text;
  const size_t front = (columns - 1) / 2;
  return first_of(text, front) + "…" + last_of(text, columns - 1 - front);
}

}  // namespace

Terminal Terminal::of_stdout() {
  Terminal terminal;
  if (::isatty(STDOUT_FILENO) != 1) return terminal;
  terminal.tables = true;
  const char* no_colour = std::getenv("NO_COLOR");
  const char* term = std::getenv("TERM");
  terminal.colour = (no_colour == nullptr || *no_colour == '\0') && term != nullptr &&
                    std::string_view(term) != "dumb";
  winsize size{};
  const char* columns = std::getenv("COLUMNS");
  if (::ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0) {
    terminal.width = size.ws_col;
  } else if (const long set = columns != nullptr ? std::strtol(columns, nullptr, 10) : 0; set > 0) {
    terminal.width = static_cast<size_t>(set);
  }
  return terminal;
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
  return static_cast<size_t>(
      std::count_if(text.begin(), text.end(), [](char c) { return !is_continuation(c); }));
}

void Table::add(std::vector<std::string> cells, Style style) {
  cells.resize(columns_.size());
  rows_.push_back({std::move(cells), style});
}

std::string Table::text(const Terminal& terminal) const {
  std::string out;
  if (!terminal.tables) {
    for (const Row& row : rows_) {
      for (size_t i = 0; i < row.cells.size(); ++i) out += (i == 0 ? "" : "\t") + row.cells[i];
      out += "\n";
    }
    return out;
  }

  std::vector<size_t> widths;
  size_t total = 0;
  for (size_t i = 0; i < columns_.size(); ++i) {
    size_t width = columns_of(columns_[i].heading);
    for (const Row& row : rows_) width = std::max(width, columns_of(row.cells[i]));
    widths.push_back(width);
    total += width + (i == 0 ? 0 : kGap);
  }
  for (size_t i = 0; i < columns_.size() && total > terminal.width; ++i) {
    if (!columns_[i].shrinks) continue;
    const size_t least = std::min(widths[i], kLeastShrunk);
    widths[i] = std::max(least, widths[i] - std::min(widths[i], total - terminal.width));
  }

  const auto line = [&](const std::vector<std::string>& cells) {
    std::string text;
    for (size_t i = 0; i < cells.size(); ++i) {
      const std::string cell = shortened(cells[i], widths[i]);
      const std::string fill(widths[i] - std::min(widths[i], columns_of(cell)), ' ');
      text += i == 0 ? "" : std::string(kGap, ' ');
      text += columns_[i].align == Align::left ? cell + fill : fill + cell;
    }
    text.erase(text.find_last_not_of(' ') + 1);
    return text;
  };
  std::vector<std::string> headings;
  for (const Column& column : columns_) headings.push_back(column.heading);
  out += styled(terminal, Style::bold, line(headings)) + "\n";
  for (const Row& row : rows_) out += styled(terminal, row.style, line(row.cells)) + "\n";
  return out;
}

}  // namespace dsckpt::cli
