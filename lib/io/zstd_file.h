// ZstdFile: the content of a file that zstd(1) wrote. RFC 8878, and zstd's
// contrib/seekable_format/zstd_seekable_compression_format.md.
//
// A zstd frame can only be read from its beginning. So a few decompressors walk through it from
// front to back, each from its own place. Bytes that lie before all of them are decompressed from
// the beginning again. In files of many frames, with or without a seek table, reading starts at the
// frame that is needed.
//
// Memory for a file that is read beyond its first MiB, and not to its end: at most four places.
// Each takes the last MiB or, if they are few, up to 8 MiB, and zstd's window. The window is 2 MiB
// at zstd's default level, and at most 128 MiB.
#pragma once

#include <atomic>
#include <deque>
#include <list>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "io/block_cache.h"
#include "io/content_reader.h"
#include "io/stored_file.h"
#include "io/zstd_frames.h"

namespace dsckpt {

// Content checksums are checked for frames that are read to their end.
class ZstdFile : public ContentReader {
 public:
  // Reads the seek table, else the headers of all blocks. If no header has the content's size,
  // decompresses everything once. `file` must outlive this. The constructor and read_at() throw
  // CorruptError, also for a seek table that contradicts the frames, and IoError. They throw
  // UnsupportedError for a dictionary or a window of more than 128 MiB.
  explicit ZstdFile(const StoredFile& file);
  ~ZstdFile() override;

  uint64_t size() const override;
  void read_at(uint64_t offset, std::span<std::byte> out) override;
  uint64_t stored_offset(uint64_t offset) const override;
  double stored_bytes(uint64_t offset, uint64_t size) const override;

 private:
  class Decompressor;
  SharedBlock decode(uint64_t block);
  SharedBlock read_up_to(uint64_t block, Decompressor& from);
  bool is_frame_end(uint64_t offset) const;
  Decompressor& best_for(uint64_t offset);

  const StoredFile& file_;
  std::vector<ZstdFrame> frames_;                        // and one more: the ends
  std::atomic<unsigned> waiting_{0};                     // threads, for the mutex
  std::mutex mutex_;                                     // of the next two
  std::list<Decompressor> decompressors_;                // what was used last first
  std::deque<std::pair<uint64_t, SharedBlock>> passed_;  // the last blocks that were made
  BlockCache cache_;
};

}  // namespace dsckpt
