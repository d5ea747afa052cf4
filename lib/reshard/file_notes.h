// Notes on the parts of a checkpoint that have no place in the files of a target.
#pragma once

#include <string>
#include <vector>

#include "reshard/rank_file.h"

namespace dsckpt {

std::vector<std::string> file_notes(const ShardSource& from);

}  // namespace dsckpt
