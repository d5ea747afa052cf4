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
  size_t columns;  // 0: marks without a character
};

bool is_ascii(const std::string& text) {
  return std::all_of(text.begin(), text.end(), [](char c) { return (c & 0x80) == 0; });
}

// This depends on no locale: the C library's tables are in files that may not be installed.
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

// Returns the bytes of the characters from `first` on that fit into `columns`.
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

bool wants_ascii() {
  for (const char* name : {"LC_ALL", "LC_CTYPE", "LANG"}) {
    const std::string_view locale = variable(name);
    if (!locale.empty()) return locale == "C" || locale == "POSIX";
  }
  return false;
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
  const std::string mark = wants_ascii() ? std::string(std::min<size_t>(columns, 3), '.') : "…";
  const size_t left = columns - columns_of(mark);
  const size_t head = bytes_that_fit(characters.begin(), characters.end(), left / 2);
  const size_t tail = bytes_that_fit(characters.rbegin(), characters.rend(), left - left / 2);
  return text.substr(0, head) + mark + text.substr(text.size() - tail);
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

}  // namespace dsckpt::cli
