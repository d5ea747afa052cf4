// The machine that this process runs on.
#pragma once

#include <string>

namespace dsckpt {

// As gethostname(2) tells it; "" if it does not.
std::string host_name();

}  // namespace dsckpt
