// What kind of file system a path lies on, where that decides how long reads and writes are.
#pragma once

#include <cstdint>
#include <filesystem>

namespace dsckpt {

enum class FileSystemKind : uint8_t {
  local,  // and whatever is not known here
  lustre,
  gpfs,
  nfs,
  fuse,
  objects,  // an object store (far_files.h)
};

// Of what statfs(2) calls f_type.
FileSystemKind kind_of(uint64_t type);
// Of the file system that `path` is on, or would be; `local` where that cannot be told.
FileSystemKind file_system_kind(const std::filesystem::path& path);

// The nearest folder above `path` that exists, or itself.
std::filesystem::path existing_part(std::filesystem::path path);

}  // namespace dsckpt
