// A folder of this user alone, as staging folders are.
#pragma once

#include <filesystem>

#include "io/folder.h"

namespace dsckpt::test {

// The one at `path`.
inline Folder own(const std::filesystem::path& path) {
  return Folder::at(path.parent_path()).own(path.filename().string()).value();
}

// Makes it.
inline Folder make_own(const std::filesystem::path& path) {
  return Folder::at(path.parent_path()).make_own(path.filename().string());
}

}  // namespace dsckpt::test
