// A tool's manual page.
#pragma once

#include <string>

#include "cli/command_facts.h"

namespace dsckpt::cli {

// In the man(7) macros, without a date: equal options and version give the same text.
std::string man_page(const CommandFacts& tool, const std::string& version);

}  // namespace dsckpt::cli
