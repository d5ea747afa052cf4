// PackedFile: the content of a file that ckpt-pack wrote (codec/packed_index.h).
#pragma once

#include <vector>

#include "io/block_cache.h"
#include "io/content_reader.h"
#include "io/stored_file.h"

namespace dsckpt {

// Reads only the frames that it needs, and checks both checksums of each.
class PackedFile : public ContentReader {
 public:
  // Reads the index. `file` must outlive this. Throws CorruptError and UnsupportedError that name
  // it, and IoError.
  explicit PackedFile(const StoredFile& file);

  uint64_t size() const override { return begins_.back(); }
  void read_at(uint64_t offset, std::span<std::byte> out) override;
  uint64_t stored_offset(uint64_t offset) const override;
  double stored_bytes(uint64_t offset, uint64_t size) const override;
  std::optional<Sha256Digest> sha256() const override { return index_.sha256; }

 private:
  size_t frame_of(uint64_t offset) const;
  void decode(size_t frame, std::span<std::byte> content) const;

  const StoredFile& file_;
  PackedIndex index_;
  std::vector<uint64_t> begins_;  // of the frames in the content, and its size
  BlockCache cache_;
};

}  // namespace dsckpt
