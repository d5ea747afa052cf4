// The subcommands of ckpt-pack, one file each, listed in ckpt_pack.cpp.
#pragma once

#include "cli/cli.h"

namespace dsckpt::pack {

using cli::AddCommand;
using cli::Command;

AddCommand add_pack;
AddCommand add_unpack;
AddCommand add_strip;
AddCommand add_estimate;
AddCommand add_keep;

}  // namespace dsckpt::pack
