// Input files: their contents, whether they are stored as they are or compressed.
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

// One file of fixed size, stored as it is or held by another one (content_name.h). All methods may
// be called from any thread. Descriptors are opened on demand and may be closed in between, so that
// thousands of shards can be "open"; a file that was replaced or resized meanwhile is an IoError.
class InputFile {
 public:
  // Pickles and headers compress to a 30th; tensors of zeros, which nobody reads at once, to far
  // less.
  static constexpr uint64_t kMostAtOnce = uint64_t{16} << 20;
  static constexpr uint64_t kMostExpansion = 256;

  // Opens what stored_path() finds. `display` is the name used in messages. Throws IoError if there
  // is none, or it cannot be opened or is not a regular file; for a compressed one also what
  // PackedFile and ZstdFile throw.
  explicit InputFile(const std::filesystem::path& path, std::string display = {});
  // A far file (far_files.h): `stored` is what it is called where it is, compressed or not.
  InputFile(const std::filesystem::path& path, std::string display, const FarFile& stored);
  ~InputFile();
  InputFile(const InputFile&) = delete;
  InputFile& operator=(const InputFile&) = delete;

  // Of the content: without .dspack or .zst.
  const std::filesystem::path& path() const { return path_; }
  const std::string& display() const { return display_; }
  uint64_t size() const { return size_; }

  Encoding encoding() const { return encoding_; }
  // What it is stored in: with .dspack or .zst.
  const std::filesystem::path& stored_path() const;
  // Bytes on the disk.
  uint64_t stored_size() const;
  // When that was last written, nanoseconds since the epoch.
  int64_t modified() const;
  // Throws IoError if another file is there now, or if it was written to since it was opened.
  void check_unchanged() const;
  // The share of them that content [offset, offset + size) takes. That range lies inside.
  double stored_bytes(uint64_t offset, uint64_t size) const;
  // Of the content, where a packed file says it.
  std::optional<Sha256Digest> sha256() const;

  // From now on the system reads nothing ahead of what is asked for: others read the rest.
  void read_exactly() const;
  // Fills `out` from `offset`. Throws IoError if the file cannot give all of it, CorruptError where
  // what is stored cannot be decompressed or does not match its checksum.
  void read_at(uint64_t offset, std::span<std::byte> out) const;
  // Whether the byte at `offset` could be read without waiting for the disk, as far as the system
  // can tell. Throws IoError.
  bool is_cached(uint64_t offset) const;
  // read_at() into a new buffer. Throws CorruptError if [offset, offset + size) is not inside the
  // file, or more than kMostAtOnce and kMostExpansion times what the file takes on the disk (a
  // bomb), before anything is allocated.
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

// An archive within a file of many.
struct FilePart {
  Extent extent = {};
  std::string name = {};  // of what it holds, for messages
};

// The table of all inputs of one run. add() from one thread at a time; the rest from any thread.
// Files stay until the table goes, so references are stable.
class InputFiles {
 public:
  // Opens `path`; the same path again gives the same id. Messages name the file relative to `root`
  // when it lies inside it.
  FileId add(const std::filesystem::path& path, const std::filesystem::path& root = {});

  // The same of a file of which many parts are going to be read: a small one is kept in memory.
  FileId add_kept(const std::filesystem::path& path, const std::filesystem::path& root = {});

  // Opens `path` once more, always with an id of its own, and calls it `display`.
  FileId add_again(const std::filesystem::path& path, std::string display);
  FileId add_far(const std::filesystem::path& path, std::string display, const FarFile& stored);

  // A table of some of the files, which both then have; the first of `ids` is number 0 there.
  InputFiles selected(std::span<const FileId> ids) const;

  const InputFile& operator[](FileId id) const { return *files_[id]; }

  // Says that a file is not one archive but many, by their offsets: nothing in the file itself
  // does.
  void set_parts(FileId id, std::vector<FilePart> parts) { parts_[id] = std::move(parts); }
  // nullptr of a file that is one.
  const std::vector<FilePart>* parts(FileId id) const {
    const auto found = parts_.find(id);
    return found == parts_.end() ? nullptr : &found->second;
  }
  size_t size() const { return files_.size(); }

  // Who is told of files that are opened, and may stop it; nullptr for nobody, as at first.
  void watch(Progress* progress) { progress_ = progress; }
  Progress* progress() const { return progress_; }

 private:
  std::vector<std::shared_ptr<InputFile>> files_;
  KeyedMap<std::string, FileId> ids_;  // by path, as it was given
  std::unordered_map<FileId, std::vector<FilePart>> parts_;
  Progress* progress_ = nullptr;
};

}  // namespace dsckpt
