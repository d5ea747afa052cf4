// A whole terminal as rows of text, and the keys that are typed there. Only screen.cpp and
// known_terminal.cpp know of ncurses.
#pragma once

#include <cstddef>
#include <string>

#include "cli/terminal.h"

namespace dsckpt::inspect {

enum class Key {
  none,  // nothing was typed in time
  resized,
  up,
  down,
  left,
  right,
  page_up,
  page_down,
  home,
  end,
  enter,
  escape,
  backspace,
  tab,
  character,
  other,
};

struct Typed {
  Key key = Key::none;
  std::string character;  // of Key::character: UTF-8, printable
};

// Takes the terminal of stdin and stdout while it lives, one at a time, and gives it back as it
// was, however it ends. SIGINT, SIGTERM and SIGHUP make read() throw InterruptedError meanwhile; a
// second one ends the process. Ctrl-Z works as everywhere.
class Screen {
 public:
  // Throws UsageError if stdin or stdout is no terminal.
  static void require_terminal();
  // Throws that, and UsageError for a terminal that ncurses cannot draw on.
  Screen();
  ~Screen();
  Screen(const Screen&) = delete;
  Screen& operator=(const Screen&) = delete;

  size_t rows() const;
  size_t columns() const;
  // `text`, which is printable(), as it can be shown here: where the terminal takes no UTF-8, other
  // characters than ASCII are "\u{5c42}".
  std::string shown(const std::string& text) const;

  // Empties what will be shown.
  void clear();
  // From `column` on, as much of shown(text) as the row has room for.
  void put(size_t row, size_t column, const std::string& text,
           cli::Style style = cli::Style::plain);
  // Makes a row stand out, from its first column to its last.
  void highlight(size_t row);
  // Shows what was put since clear().
  void show();

  // What is typed next; waits so long at most.
  Typed read(int milliseconds);

 private:
  void* handle_ = nullptr;  // of ncurses
  bool colour_ = false;
  bool utf8_ = false;
};

}  // namespace dsckpt::inspect
