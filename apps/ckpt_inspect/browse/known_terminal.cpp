#include "ckpt_inspect/browse/known_terminal.h"

#include <curses.h>
#include <term.h>
#include <unistd.h>

namespace dsckpt::inspect {

// newterm() would report it too, but leaks memory when it fails.
bool is_known_terminal(const char* name) {
  int why = 0;
  if (::setupterm(name, STDOUT_FILENO, &why) != OK) return false;
  ::del_curterm(::set_curterm(nullptr));
  return true;
}

}  // namespace dsckpt::inspect
