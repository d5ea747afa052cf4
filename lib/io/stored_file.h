// Files as they are on the disk: opened read-only, read by position, never mapped by the tools (a
// mapping turns a file that shrinks or a failing disk into SIGBUS; pread turns it into an IoError
// with a name).
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

// One regular file of fixed size. All methods may be called from any thread. The descriptor is
// opened on demand and may be closed in between, so that thousands of shards can be "open"; a file
// that was replaced or resized meanwhile is an IoError.
class StoredFile {
 public:
  // Throws IoError if `path` cannot be opened or is not a regular file. `display` is the name used
  // in messages. A far file (far_files.h) is opened where it is; `path` is then only a name.
  StoredFile(std::filesystem::path path, std::string display, std::optional<FarFile> far = {});
  ~StoredFile();
  StoredFile(const StoredFile&) = delete;
  StoredFile& operator=(const StoredFile&) = delete;

  const std::filesystem::path& path() const;
  const std::string& display() const;
  uint64_t size() const;
  // When it was last written, nanoseconds since the epoch.
  int64_t modified() const;
  // Throws IoError if another file is there now, or if it was written to since it was opened.
  void check_unchanged() const;

  // From now on the system reads nothing ahead of what is asked for.
  void read_exactly() const;
  // Fills `out` from `offset`. Throws IoError if the file cannot give all of it.
  void read_at(uint64_t offset, std::span<std::byte> out) const;
  // Whether the byte at `offset` could be read without waiting for the disk, as far as the system
  // can tell. Throws IoError.
  bool is_cached(uint64_t offset) const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace dsckpt
