// The machine that this process runs on.
#pragma once

#include <string>

namespace dsckpt {

// The name from gethostname(2); "" if that fails.
std::string host_name();

}  // namespace dsckpt
