// FileDescriptor: owns a descriptor of a file, folder, socket or pipe, and closes it.
#pragma once

#include <unistd.h>

#include <utility>

namespace dsckpt {

// Movable. -1: none. An error of close() is lost: a writer that must see it closes release()'s.
class FileDescriptor {
 public:
  explicit FileDescriptor(int fd = -1) : fd_(fd) {}
  ~FileDescriptor() {
    if (fd_ >= 0) ::close(fd_);
  }
  FileDescriptor(FileDescriptor&& other) noexcept : fd_(other.release()) {}
  FileDescriptor& operator=(FileDescriptor&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }

  int get() const { return fd_; }
  explicit operator bool() const { return fd_ >= 0; }
  // Gives it up: the caller closes it.
  int release() { return std::exchange(fd_, -1); }
  void reset() { FileDescriptor(std::exchange(fd_, -1)); }

 private:
  int fd_;
};

}  // namespace dsckpt
