// The frames of a zstd file, found without decompressing them. RFC 8878, and zstd's
// contrib/seekable_format/zstd_seekable_compression_format.md; byte layout in format/FORMATS.md.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "dsckpt/error.h"
#include "io/stored_file.h"

namespace dsckpt {

// Bytes of the header of a skippable frame.
inline constexpr uint64_t kZstdSkippableHeader = 8;

struct ZstdFrame {
  uint64_t stored = 0;   // where it begins in the file
  uint64_t content = 0;  // and in the content
};

// The frames that are not empty, by the seek table or else by the headers of all blocks. One more
// entry has the ends of file and content. nullopt if a header does not say how much its frame
// holds. Throws CorruptError for bytes that are cut short, are not a frame, or claim more than
// their blocks can hold. Throws UnsupportedError as refuse_zstd(), and IoError.
std::optional<std::vector<ZstdFrame>> find_zstd_frames(const StoredFile& file);

// `result`: an error of zstd's. Throws UnsupportedError for a dictionary or a window of more than
// 128 MiB. Throws std::bad_alloc if memory has run out, else CorruptError.
[[noreturn]] void refuse_zstd(const Where& where, size_t result);

}  // namespace dsckpt
