// Input files: their contents, whether stored plain or compressed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/extent.h"
#include "base/keyed_hash.h"
#include "codec/packed_index.h"
#include "io/content_name.h"

namespace dsckpt {

class ContentReader;
class StoredFile;
struct FarFile;
struct Progress;

// One file of fixed size, plain or compressed in another file (content_name.h). Any thread.
// Descriptors are opened on demand and may be closed in between, so that thousands of shards can be
// "open". A file that was replaced or resized meanwhile is an IoError.
class InputFile {
 public:
  // Pickles and headers compress to a 30th. Tensors of zeros, which nobody reads at once, compress
  // to far less.
  static constexpr uint64_t kMostAtOnce = uint64_t{16} << 20;
  static constexpr uint64_t kMostExpansion = 256;

  // Opens the file that stored_path() finds. `display` is its name in messages. Throws IoError if
  // there is none, it cannot be opened or it is not a regular file. For a compressed file throws as
  // PackedFile and ZstdFile do.
  explicit InputFile(const std::filesystem::path& path, std::string display = {});
  // A far file (far_files.h). `stored` is the remote file, compressed or not.
  InputFile(const std::filesystem::path& path, std::string display, const FarFile& stored);
  ~InputFile();
  InputFile(const InputFile&) = delete;
  InputFile& operator=(const InputFile&) = delete;

  // The path of the content: without .dspack or .zst.
  const std::filesystem::path& path() const { return path_; }
  const std::string& display() const { return display_; }
  uint64_t size() const { return size_; }

  Encoding encoding() const { return encoding_; }
  // The path of the stored file: with .dspack or .zst.
  const std::filesystem::path& stored_path() const;
  // Bytes on the disk.
  uint64_t stored_size() const;
  // The time of its last change, nanoseconds since the epoch.
  int64_t modified() const;
  // The remote place of a far file, as it is stored; nullptr for any other.
  const FarFile* far() const;
  // Throws IoError if the file was replaced or changed since it was opened.
  void check_unchanged() const;
  // The stored bytes of content [offset, offset + size), as a share of all. The range lies inside.
  double stored_bytes(uint64_t offset, uint64_t size) const;
  // The hash of the content, if a packed file has it.
  std::optional<Sha256Digest> sha256() const;

  // Stops the system's read-ahead: others read the rest.
  void read_exactly() const;
  // Fills `out` from `offset`. Throws IoError if the file cannot give all of it. Throws
  // CorruptError if the stored bytes cannot be decompressed or do not match their checksum.
  void read_at(uint64_t offset, std::span<std::byte> out) const;
  // True if the byte at `offset` can be read without waiting for the disk, as far as the system can
  // tell. Throws IoError.
  bool is_cached(uint64_t offset) const;
  // read_at() into a new buffer. Throws CorruptError before anything is allocated, if [offset,
  // offset + size) is not inside the file. Throws it also for a bomb: more than kMostAtOnce, and
  // more than kMostExpansion times the file's size on the disk.
  std::vector<std::byte> read(uint64_t offset, uint64_t size) const;
  // Reads a file of at most 64 KiB whole, now: read() takes from that. Not while others read.
  void keep_small();

 private:
  void open(const std::filesystem::path& stored, const std::optional<FarFile>& far);

  std::filesystem::path path_;
  std::string display_;
  Encoding encoding_ = Encoding::plain;
  std::unique_ptr<StoredFile> stored_;
  std::unique_ptr<ContentReader> content_;  // nullptr of a plain file
  uint64_t size_ = 0;
  std::vector<std::byte> kept_;  // all of it, or nothing
};

// An archive inside a file that holds many.
struct FilePart {
  Extent extent = {};
  std::string name = {};  // of its content, for messages
};

// The table of all inputs of a run. Call add() from one thread at a time, the rest from any. Files
// stay as long as the table, so references are stable.
class InputFiles {
 public:
  // Opens `path`; the same path again gives the same id. Messages name the file relative to `root`
  // when it lies inside it.
  FileId add(const std::filesystem::path& path, const std::filesystem::path& root = {});

  // Adds a file like add(). Many parts of it will be read, so a small one is kept in memory.
  FileId add_kept(const std::filesystem::path& path, const std::filesystem::path& root = {});

  // Opens `path` once more, always with a new id, and calls it `display`.
  FileId add_again(const std::filesystem::path& path, std::string display);
  FileId add_far(const std::filesystem::path& path, std::string display, const FarFile& stored);

  // A table that shares some of the files; the first of `ids` is number 0 there.
  InputFiles selected(std::span<const FileId> ids) const;

  const InputFile& operator[](FileId id) const { return *files_[id]; }

  // Declares that a file is not one archive but many, by their offsets. The file itself does not
  // say so.
  void set_parts(FileId id, std::vector<FilePart> parts) { parts_[id] = std::move(parts); }
  // nullptr for a file that is one archive.
  const std::vector<FilePart>* parts(FileId id) const {
    const auto found = parts_.find(id);
    return found == parts_.end() ? nullptr : &found->second;
  }
  size_t size() const { return files_.size(); }

  // Sets the Progress that counts opened files and may stop it. nullptr, the default: none.
  void watch(Progress* progress) { progress_ = progress; }
  Progress* progress() const { return progress_; }

 private:
  std::vector<std::shared_ptr<InputFile>> files_;
  KeyedMap<std::string, FileId> ids_;  // by path, as it was given
  std::unordered_map<FileId, std::vector<FilePart>> parts_;
  Progress* progress_ = nullptr;
};

}  // namespace dsckpt
