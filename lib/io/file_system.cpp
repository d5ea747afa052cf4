#include "io/file_system.h"

#include <sys/vfs.h>

#include <system_error>

namespace dsckpt {
namespace fs = std::filesystem;
namespace {

struct Magic {
  uint64_t type;
  FileSystemKind kind;
};
constexpr Magic kMagics[] = {
    {0x0BD00BD0, FileSystemKind::lustre},  // LL_SUPER_MAGIC, lustre/include/lustre_compat.h
    {0x47504653, FileSystemKind::gpfs},    // "GPFS"
    {0x6969, FileSystemKind::nfs},         // NFS_SUPER_MAGIC, linux/magic.h
    {0x65735546, FileSystemKind::fuse},    // FUSE_SUPER_MAGIC, linux/magic.h
};

}  // namespace

FileSystemKind kind_of(uint64_t type) {
  for (const Magic& magic : kMagics) {
    if (magic.type == type) return magic.kind;
  }
  return FileSystemKind::local;
}

FileSystemKind file_system_kind(const fs::path& path) {
  struct statfs there {};
  if (::statfs(existing_part(path).c_str(), &there) != 0) return FileSystemKind::local;
  // f_type is a signed 32-bit number on some platforms.
  return kind_of(static_cast<uint32_t>(there.f_type));
}

fs::path existing_part(fs::path path) {
  path = fs::absolute(path).lexically_normal();
  std::error_code ignored;
  while (!fs::exists(path, ignored) && path.has_relative_path()) path = path.parent_path();
  return path;
}

}  // namespace dsckpt
