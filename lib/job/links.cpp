#include "job/links.h"

#include <algorithm>
#include <system_error>

namespace dsckpt {
namespace fs = std::filesystem;

bool leads_out(const fs::path& file, std::span<const fs::path> folders) {
  std::error_code failed;
  const fs::path real = fs::canonical(file, failed);
  if (failed) return false;
  return std::none_of(folders.begin(), folders.end(), [&](const fs::path& folder) {
    const fs::path inside = fs::canonical(folder, failed);
    return !failed && std::mismatch(inside.begin(), inside.end(), real.begin(), real.end()).first ==
                          inside.end();
  });
}

}  // namespace dsckpt
