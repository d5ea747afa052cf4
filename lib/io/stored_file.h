// Files as they are stored: opened read-only, read by position. The tools never map them: a
// shrinking file or a failing disk would raise SIGBUS. pread gives an IoError with a name instead.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "io/far_files.h"

namespace dsckpt {

// One regular file of fixed size. Any thread. The descriptor is opened on demand and may be closed
// in between, so that thousands of shards can be "open". A file that was replaced or resized
// meanwhile is an IoError.
class StoredFile {
 public:
  // Throws IoError if `path` cannot be opened or is not a regular file. `display` is its name in
  // messages. A far file (far_files.h) is opened at its remote place, and `path` is only a name.
  StoredFile(std::filesystem::path path, std::string display, std::optional<FarFile> far = {});
  ~StoredFile();
  StoredFile(const StoredFile&) = delete;
  StoredFile& operator=(const StoredFile&) = delete;

  const std::filesystem::path& path() const;
  const std::string& display() const;
  uint64_t size() const;
  // The time of its last change, nanoseconds since the epoch.
  int64_t modified() const;
  // The remote place of a far file; nullptr for any other.
  const FarFile* far() const;
  // Throws IoError if the file was replaced or changed since it was opened.
  void check_unchanged() const;

  // Stops the system's read-ahead.
  void read_exactly() const;
  // Fills `out` from `offset`. Throws IoError if the file cannot give all of it.
  void read_at(uint64_t offset, std::span<std::byte> out) const;
  // True if the byte at `offset` can be read without waiting for the disk, as far as the system can
  // tell. Throws IoError.
  bool is_cached(uint64_t offset) const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace dsckpt
