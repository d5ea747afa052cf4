#include "deepspeed/release.h"

#include <charconv>

namespace dsckpt {

std::optional<Release> release_of(std::string_view ds_version) {
  Release release;
  const char* at = ds_version.data();
  const char* const end = at + ds_version.size();
  for (size_t i = 0; i < release.numbers.size(); ++i) {
    const auto [rest, failed] = std::from_chars(at, end, release.numbers[i]);
    if (failed != std::errc()) return i == 0 ? std::nullopt : std::optional(release);
    if (rest == end || *rest != '.') break;
    at = rest + 1;
  }
  return release;
}

}  // namespace dsckpt
