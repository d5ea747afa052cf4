// Output files: created new, written by position from any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <mutex>
#include <span>
#include <string>

namespace dsckpt {

// One file that did not exist before. Not committed to anything: the owner renames or removes it.
class OutputFile {
 public:
  // Creates `path`, which must not exist, and reserves `size` bytes for it where the file system
  // can. Throws IoError, also when there is no room for that many.
  explicit OutputFile(std::filesystem::path path, std::string display = {}, uint64_t size = 0);
  // Closes without a word; call close() to hear of errors.
  ~OutputFile();
  OutputFile(const OutputFile&) = delete;
  OutputFile& operator=(const OutputFile&) = delete;

  // Writes all of `bytes` at `offset`. Any thread. Throws IoError.
  void write_at(uint64_t offset, std::span<const std::byte> bytes);
  // Waits until the data is on the device (fsync). Throws IoError.
  void sync();
  // Throws IoError: some file systems report a full disk only here.
  void close();

 private:
  std::filesystem::path path_;
  std::string display_;
  int fd_ = -1;
  std::mutex writing_;
};

// fsync of a directory, so that renames inside it survive a crash. Throws IoError.
void sync_directory(const std::filesystem::path& path);

// Bytes an unprivileged user can still write to the file system that holds `path`. Throws IoError.
uint64_t free_space(const std::filesystem::path& path);

}  // namespace dsckpt
