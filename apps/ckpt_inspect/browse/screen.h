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

// Takes over the terminal of stdin and stdout while it lives, one at a time, and restores it,
// however it ends. SIGINT, SIGTERM and SIGHUP make read() throw InterruptedError meanwhile; a
// second one ends the process. Ctrl-Z works as everywhere.
class Screen {
 public:
  // Throws UsageError if stdin or stdout is not a terminal.
  static void require_terminal();
  // Throws as require_terminal(), and UsageError for a terminal that ncurses cannot draw on.
  Screen();
  ~Screen();
  Screen(const Screen&) = delete;
  Screen& operator=(const Screen&) = delete;

  size_t rows() const;
  size_t columns() const;
  // `text`, which is printable(), in a form that can be shown here. Without UTF-8 in the terminal,
  // characters other than ASCII become "\u{5c42}".
  std::string shown(const std::string& text) const;

  // Clears the next picture.
  void clear();
  // Puts shown(text) into a row from `column` on, as far as there is room.
  void put(size_t row, size_t column, const std::string& text,
           cli::Style style = cli::Style::plain);
  // Makes a row stand out, from its first column to its last.
  void highlight(size_t row);
  // Shows the picture that was drawn since clear().
  void show();

  // The next key; waits for so long at most.
  Typed read(int milliseconds);

 private:
  void* handle_ = nullptr;  // of ncurses
  bool colour_ = false;
  bool utf8_ = false;
};

}  // namespace dsckpt::inspect
