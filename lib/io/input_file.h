// Input files: opened read-only, read by position, never mapped by the tools (a mapping turns a
// file that shrinks or a failing disk into SIGBUS; pread turns it into an IoError with a name).
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/extent.h"

namespace dsckpt {

// One regular file of fixed size. All methods may be called from any thread. The descriptor is
// opened on demand and may be closed in between, so that thousands of shards can be "open"; a file
// that was replaced or resized meanwhile is an IoError.
class InputFile {
 public:
  // Throws IoError if `path` cannot be opened or is not a regular file. `display` is the name used
  // in messages.
  explicit InputFile(std::filesystem::path path, std::string display = {});
  ~InputFile();
  InputFile(const InputFile&) = delete;
  InputFile& operator=(const InputFile&) = delete;

  const std::filesystem::path& path() const;
  const std::string& display() const;
  uint64_t size() const;

  // Fills `out` from `offset`. Throws IoError if the file cannot give all of it.
  void read_at(uint64_t offset, std::span<std::byte> out) const;
  // Whether the byte at `offset` could be read without waiting for the disk, as far as the system
  // can tell. Throws IoError.
  bool is_cached(uint64_t offset) const;
  // read_at() into a new buffer. Throws CorruptError if [offset, offset + size) is not inside the
  // file, before anything is allocated.
  std::vector<std::byte> read(uint64_t offset, uint64_t size) const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// The table of all inputs of one run. add() from one thread at a time; the rest from any thread.
// Files stay until the table goes, so references are stable.
class InputFiles {
 public:
  // Opens `path`; the same path again gives the same id. Messages name the file relative to `root`
  // when it lies inside it.
  FileId add(const std::filesystem::path& path, const std::filesystem::path& root = {});

  // Opens `path` once more, always with an id of its own, and calls it `display`.
  FileId add_again(const std::filesystem::path& path, std::string display);

  const InputFile& operator[](FileId id) const { return *files_[id]; }
  size_t size() const { return files_.size(); }

 private:
  std::vector<std::unique_ptr<InputFile>> files_;
  std::unordered_map<std::string, FileId> ids_;  // by path, as it was given
};

}  // namespace dsckpt
