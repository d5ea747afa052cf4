// Folders, listed: each at most once.
#pragma once

#include <filesystem>
#include <map>
#include <string_view>
#include <system_error>
#include <vector>

#include "dsckpt/error.h"

namespace dsckpt {

// `failed`: what listing it gave.
IoError cannot_list(const std::filesystem::path& folder, const std::error_code& failed);

// What a folder holds, by name. Files are called by their contents: one that is stored compressed
// (content_name.h) has the name of what it holds, twice if it is there in two forms.
struct ListedFolder {
  std::filesystem::path path;
  std::vector<std::filesystem::path> folders = {};  // links to folders, too
  std::vector<std::filesystem::path> files = {};

  bool has_file(std::string_view name) const;
};

// One thread at a time.
class Folders {
 public:
  // The folder, listed now or before. What is no folder, or is not there, holds nothing. Throws
  // cannot_list(). The reference stays as long as this.
  const ListedFolder& operator[](const std::filesystem::path& folder);

 private:
  std::map<std::filesystem::path, ListedFolder> folders_;
};

}  // namespace dsckpt
