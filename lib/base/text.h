// Words of messages.
#pragma once

#include <algorithm>
#include <concepts>
#include <string>
#include <vector>

namespace dsckpt {

// "1 tensor", "2 tensors", of a noun that takes an s.
inline std::string counted(std::integral auto count, const std::string& noun) {
  return std::to_string(count) + " " + noun + (count == 1 ? "" : "s");
}

// Each on a line of its own; longer lists than a thousand lines help nobody.
inline std::string listed(const std::vector<std::string>& lines) {
  constexpr size_t kMaxListed = 1024;
  std::string text;
  for (size_t i = 0; i < std::min(lines.size(), kMaxListed); ++i) text += "\n  " + lines[i];
  return lines.size() > kMaxListed ? text + "\n  ..." : text;
}

}  // namespace dsckpt
