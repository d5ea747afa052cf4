// The finding of a condition of refusals.h.
#pragma once

#include <string>

namespace dsckpt {

// The finding of a condition, where it is more than yes or no. Empty fields are as the row has
// them.
struct Found {
  std::string tensor = {};  // which parameter is meant
  std::string text = {};    // what is wrong with it
  std::string folder = {};  // where
};

}  // namespace dsckpt
