// Words of messages.
#pragma once

#include <cstdint>
#include <string>

namespace dsckpt {

// "1 tensor", "2 tensors", of a noun that takes an s.
inline std::string counted(uint64_t count, const std::string& noun) {
  return std::to_string(count) + " " + noun + (count == 1 ? "" : "s");
}

}  // namespace dsckpt
