// The time of a file's last change, as one number.
#pragma once

#include <sys/stat.h>

#include <cstdint>

namespace dsckpt {

// st_mtim in nanoseconds since the epoch.
inline int64_t modified_ns(const struct stat& file) {
  return file.st_mtim.tv_sec * 1'000'000'000 + file.st_mtim.tv_nsec;
}

}  // namespace dsckpt
