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
  // Write past the page cache (O_DIRECT) where the file system can. Only whole blocks of memory
  // that is aligned to kDirectBlock as its offset is are written so. The rest of such writes, short
  // writes, and other memory go through the page cache.
  bool direct = false;
  // The longest write through the page cache. A write takes a block of memory of its size. On a
  // virtual machine, large blocks may have to be fetched from the host first. Writes of 256 KiB
  // took up to three times as long.
  uint64_t write_bytes = 64 << 10;
  // Other processes of this user may have created it already; the bytes that they wrote are kept.
  bool may_be_there = false;
};

// A file that must not exist yet, unless it may. It is not committed: the owner renames or removes
// it.
class OutputFile {
 public:
  // The largest device block; direct writes are multiples of it.
  static constexpr uint64_t kDirectBlock = 4096;

  // Creates `name` in `folder`. Throws IoError, also if there is no room for `options.size` bytes.
  // Throws UsageError if a file may be there already, and it is not this user's.
  OutputFile(const Folder& folder, const std::filesystem::path& name, std::string display = {},
             const OutputOptions& options = {});
  // Closes and ignores errors; call close() to get them.
  ~OutputFile();
  OutputFile(const OutputFile&) = delete;
  OutputFile& operator=(const OutputFile&) = delete;

  // Writes all of `bytes` at `offset`. Any thread; concurrent writes must not overlap. Throws
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

  // Waits until everything written to it is on the device (syncfs). Throws IoError, also for
  // anyone's write-back that failed since the constructor.
  void sync();

 private:
  std::string folder_;
  int fd_;
};

// Writes all of `text` at the position of `fd`. False, with errno, if that fails.
bool write_all(int fd, std::string_view text);

// Syncs a closed file (fsync). Throws IoError.
void sync_file(const Folder& folder, const std::filesystem::path& name);

// Bytes an unprivileged user can still write to the file system that holds `path`. Throws IoError.
uint64_t free_space(const std::filesystem::path& path);

}  // namespace dsckpt
