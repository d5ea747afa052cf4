// Shell completions: scripts that know a tool's subcommands, options and their values.
#pragma once

#include <string>

#include "cli/command_facts.h"

namespace dsckpt::cli {

// To be sourced, or installed as NAME in a folder of bash-completion. Needs bash 4, no package.
std::string bash_completion(const CommandFacts& tool);
// To be installed as _NAME in a folder of $fpath, or sourced after compinit.
std::string zsh_completion(const CommandFacts& tool);
// To be sourced, or installed as NAME.fish in a folder of $fish_complete_path.
std::string fish_completion(const CommandFacts& tool);

}  // namespace dsckpt::cli
