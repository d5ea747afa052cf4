// The subcommands of ckpt-pack, one file each, listed in ckpt_pack.cpp.
#pragma once

#include <CLI/App.hpp>
#include <functional>

#include "cli.h"

namespace dsckpt::pack {

// A subcommand that was added to the tool.
struct Command {
  CLI::App* app;
  std::function<int()> run;  // the exit code
};

// Adds a subcommand, with its options, to `app`. What it keeps lives as long as the Command.
using AddCommand = Command(CLI::App& app, cli::Common& common);
AddCommand add_pack;
AddCommand add_unpack;
AddCommand add_strip;
AddCommand add_estimate;

}  // namespace dsckpt::pack
