// Folders, listed: each at most once.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <string_view>
#include <system_error>
#include <vector>

#include "dsckpt/error.h"

namespace dsckpt {

// `failed`: the error from listing it.
IoError cannot_list(const std::filesystem::path& folder, const std::error_code& failed);

// The same folder by a path that ends in its name: not "global_step10/" and not ".". Messages name
// files relative to the folder above it.
std::filesystem::path with_name(const std::filesystem::path& path);

// The entries of a folder, by name. Files are called by their contents. A file that is stored
// compressed (content_name.h) has the name of its content, twice if two forms of it are there.
struct ListedFolder {
  std::filesystem::path path;
  std::vector<std::filesystem::path> folders = {};  // links to folders, too
  std::vector<std::filesystem::path> files = {};

  bool has_file(std::string_view name) const;
};

// The kind of a file by its content (file_content()).
enum class FileContent : uint8_t {
  training,    // a model's and an optimizer's state_dict
  optimizer,   // an optimizer's state_dict alone
  unreadable,  // an archive of torch, damaged or cut off
  other,
};

// One thread at a time.
class Folders {
 public:
  // The folder, listed now or before, with a slash at its end or without. A path that is missing,
  // or no folder, has no entries. Throws cannot_list(). The reference stays valid as long as this
  // object.
  const ListedFolder& operator[](const std::filesystem::path& folder);

  // The files that file_content() was asked for: each is opened once.
  std::map<std::filesystem::path, FileContent> contents = {};

 private:
  std::map<std::filesystem::path, ListedFolder> folders_;
};

}  // namespace dsckpt
