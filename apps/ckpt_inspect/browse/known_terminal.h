// Whether a terminal can be drawn on. Apart from screen.cpp because <term.h> defines names like
// `columns`.
#pragma once

namespace dsckpt::inspect {

// Whether ncurses has a description of that terminal.
bool is_known_terminal(const char* name);

}  // namespace dsckpt::inspect
