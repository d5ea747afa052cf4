// The kind of file system at a path, which decides how long reads and writes are.
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

// The kind for a type of statfs(2), f_type.
FileSystemKind kind_of(uint64_t type);
// The kind at `path`, or where it would be; `local` if that cannot be told.
FileSystemKind file_system_kind(const std::filesystem::path& path);

// The nearest folder above `path` that exists, or itself.
std::filesystem::path existing_part(std::filesystem::path path);

}  // namespace dsckpt
