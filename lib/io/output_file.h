// Output files: created new, written by position from any thread.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <mutex>
#include <span>
#include <string>
#include <string_view>

#include "io/folder.h"

namespace dsckpt {

struct OutputOptions {
  // Bytes to reserve, where the file system can.
  uint64_t size = 0;
  // Past the page cache where the file system can (O_DIRECT): whole blocks of writes whose memory
  // lies as far behind a multiple of kDirectBlock as their offset does. The rest of such writes,
  // short ones, and those of other memory go through the page cache.
  bool direct = false;
  // The longest write through the page cache. That takes a block of memory as large as a write, and
  // large ones may have to be fetched from a virtual machine's host first: 256 KiB at a time took
  // up to three times as long.
  uint64_t write_bytes = 64 << 10;
  // Others of this user's processes may have made it already, and it keeps what they have written.
  bool may_be_there = false;
};

// One file that did not exist before, unless it may. Not committed to anything: the owner renames
// or removes it.
class OutputFile {
 public:
  // No device has larger blocks that direct writes must be multiples of.
  static constexpr uint64_t kDirectBlock = 4096;

  // Creates `name` in `folder`. Throws IoError, also when there is no room for `options.size`
  // bytes; UsageError for what may be there already and is not a file of this user's.
  OutputFile(const Folder& folder, const std::filesystem::path& name, std::string display = {},
             const OutputOptions& options = {});
  // Closes without a word; call close() to hear of errors.
  ~OutputFile();
  OutputFile(const OutputFile&) = delete;
  OutputFile& operator=(const OutputFile&) = delete;

  // Writes all of `bytes` at `offset`. Any thread; what is written at once must not overlap. Throws
  // IoError.
  void write_at(uint64_t offset, std::span<const std::byte> bytes);
  // Waits until the data is on the device (fsync). Throws IoError.
  void sync();
  // Throws IoError: some file systems report a full disk only here.
  void close();

 private:
  void write_buffered(uint64_t offset, std::span<const std::byte> bytes);
  void write_direct(uint64_t offset, std::span<const std::byte> bytes);
  [[noreturn]] void fail_to_write(uint64_t offset, int reason) const;

  std::string display_;
  const uint64_t write_bytes_;
  int fd_ = -1;
  int direct_fd_ = -1;  // the same file, opened with O_DIRECT
  std::atomic<bool> direct_;
  std::mutex writing_;
};

// The file system that a folder lies in, for waiting for many files at once.
class FileSystem {
 public:
  // Throws IoError.
  explicit FileSystem(const Folder& folder);
  ~FileSystem();
  FileSystem(const FileSystem&) = delete;
  FileSystem& operator=(const FileSystem&) = delete;

  // Waits until everything that was written to it is on the device (syncfs). Throws IoError, also
  // for what has failed to be written back since the constructor, by whomever.
  void sync();

 private:
  std::string folder_;
  int fd_;
};

// Writes all of `text` where `fd` is. False, with errno, if that fails.
bool write_all(int fd, std::string_view text);

// fsync of a file that is closed. Throws IoError.
void sync_file(const Folder& folder, const std::filesystem::path& name);

// Bytes an unprivileged user can still write to the file system that holds `path`. Throws IoError.
uint64_t free_space(const std::filesystem::path& path);

}  // namespace dsckpt
