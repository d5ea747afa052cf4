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

// Those that hold anything, by the seek table or else by the headers of all blocks, and one more:
// the ends of file and content. nullopt where a header does not say how much its frame holds.
// Throws CorruptError for what is cut short, is no frame, or claims more than its blocks can hold;
// UnsupportedError as refuse_zstd(), and IoError.
std::optional<std::vector<ZstdFrame>> find_zstd_frames(const StoredFile& file);

// `result`: an error of zstd's. Throws UnsupportedError for a dictionary or a window of more than
// 128 MiB, std::bad_alloc where memory has ended, else CorruptError.
[[noreturn]] void refuse_zstd(const Where& where, size_t result);

}  // namespace dsckpt
