#include "job/links.h"

#include <algorithm>
#include <system_error>

namespace dsckpt {
namespace fs = std::filesystem;

bool lies_in(const fs::path& path, const fs::path& folder) {
  return std::mismatch(folder.begin(), folder.end(), path.begin(), path.end()).first ==
         folder.end();
}

bool leads_out(const fs::path& file, std::span<const fs::path> folders) {
  std::error_code failed;
  const fs::path real = fs::canonical(file, failed);
  if (failed) return false;
  return std::none_of(folders.begin(), folders.end(), [&](const fs::path& folder) {
    const fs::path inside = fs::canonical(folder, failed);
    return !failed && lies_in(real, inside);
  });
}

std::string left_out_link(const std::string& name) {
  return name + " is a link out of the checkpoint and is left out; --follow-links copies it";
}

}  // namespace dsckpt
