// Tells known terminals. It is apart from screen.cpp because <term.h> defines names like `columns`.
#pragma once

namespace dsckpt::inspect {

// True if ncurses has a description of that terminal.
bool is_known_terminal(const char* name);

}  // namespace dsckpt::inspect
