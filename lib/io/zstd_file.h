// ZstdFile: what zstd(1) wrote, read as the file that it holds. RFC 8878, and zstd's
// contrib/seekable_format/zstd_seekable_compression_format.md.
//
// A zstd frame can only be read from its beginning. So it is decompressed from front to back as it
// is asked for, by a few decompressors at a time that each go on where they are, and again from the
// beginning for what lies before all of them. Files of many frames, with a seek table or without
// one, are entered at the frame that is asked for.
//
// Memory: of a file that is read beyond its first MiB, and not to its end, the last MiB or, where
// they are few, up to 8 MiB, and zstd's window, 2 MiB at its default level and at most 128 MiB, for
// each of at most four places.
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

// Content checksums are checked where a frame is read to its end.
class ZstdFile : public ContentReader {
 public:
  // Reads the seek table or else the headers of all blocks, and if no header says how much the
  // content is, decompresses everything once. `file` must outlive this. Throws, here or where what
  // is wrong is met, CorruptError, also for a seek table that the frames belie,
  // UnsupportedError for a dictionary or a window of more than 128 MiB, and IoError.
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
