// A tool's manual page.
#pragma once

#include <string>

#include "cli/command_facts.h"

namespace dsckpt::cli {

// In the man(7) macros. Has no date: the same text for the same options and version.
std::string man_page(const CommandFacts& tool, const std::string& version);

}  // namespace dsckpt::cli
