#include "checkpoint/find/folders.h"

#include <algorithm>
#include <utility>

#include "io/content_name.h"
#include "io/far_files.h"

namespace dsckpt {
namespace fs = std::filesystem;

IoError cannot_list(const fs::path& folder, const std::error_code& failed) {
  return {{.file = shown_path(folder)}, "cannot list", failed.value()};
}

bool ListedFolder::has_file(std::string_view name) const {
  return std::binary_search(files.begin(), files.end(), path / name);
}

const ListedFolder& Folders::operator[](const fs::path& path) {
  const fs::path folder =
      path.has_filename() || path == path.root_path() ? path : path.parent_path();
  const auto known = folders_.find(folder);
  if (known != folders_.end()) return known->second;
  ListedFolder listed{.path = folder};
  std::error_code failed;
  fs::directory_iterator it(folder, failed);
  for (const fs::directory_iterator end; !failed && it != end; it.increment(failed)) {
    std::error_code ignored;
    if (it->is_directory(ignored)) {
      listed.folders.push_back(it->path());
    } else {
      listed.files.push_back(content_path(it->path()));
    }
  }
  const bool is_none =
      failed == std::errc::no_such_file_or_directory || failed == std::errc::not_a_directory;
  if (failed && !is_none) throw cannot_list(folder, failed);
  std::sort(listed.folders.begin(), listed.folders.end());
  std::sort(listed.files.begin(), listed.files.end());
  return folders_.emplace(folder, std::move(listed)).first->second;
}

fs::path with_name(const fs::path& path) {
  fs::path named = path;
  if (!named.has_filename()) named = named.parent_path();
  if (named.filename() != "." && named.filename() != "..") return named;
  named = fs::absolute(named).lexically_normal();
  return named.has_filename() ? named : named.parent_path();
}

}  // namespace dsckpt
