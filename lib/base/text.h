// Words of messages.
#pragma once

#include <concepts>
#include <string>

namespace dsckpt {

// "1 tensor", "2 tensors", of a noun that takes an s.
inline std::string counted(std::integral auto count, const std::string& noun) {
  return std::to_string(count) + " " + noun + (count == 1 ? "" : "s");
}

}  // namespace dsckpt
