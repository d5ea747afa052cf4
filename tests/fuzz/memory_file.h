// A file that exists in memory only, for readers that want a path.
#pragma once

#include <sys/mman.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <string>

namespace dsckpt {

// Holds a copy of the bytes; the path is valid as long as the object lives, in this process.
class MemoryFile {
 public:
  MemoryFile(const uint8_t* bytes, size_t size) : fd_(::memfd_create("fuzz", MFD_CLOEXEC)) {
    while (fd_ >= 0 && size != 0) {
      const ssize_t written = ::write(fd_, bytes, size);
      if (written <= 0) std::abort();
      bytes += written;
      size -= static_cast<size_t>(written);
    }
  }
  ~MemoryFile() { ::close(fd_); }
  MemoryFile(const MemoryFile&) = delete;
  MemoryFile& operator=(const MemoryFile&) = delete;

  std::filesystem::path path() const { return "/proc/self/fd/" + std::to_string(fd_); }

 private:
  int fd_;
};

}  // namespace dsckpt
