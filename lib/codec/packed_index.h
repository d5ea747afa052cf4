// The beginning and the end of a packed file: what its frames are and where they lie. Byte layout
// in format/FORMATS.md, "Packed files".
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/bytes.h"
#include "base/sha256.h"

namespace dsckpt {

// What a packed file is called: the name of the file that it holds, and this.
inline constexpr std::string_view kPackedSuffix = ".dspack";

struct PackedFrame {
  uint64_t offset = 0;        // of its bytes in the packed file
  uint32_t stored_size = 0;   // bytes there
  uint32_t content_size = 0;  // bytes in the file that it holds; 1 to kLargestFrame
  uint64_t content_hash = 0;  // xxh3
  uint64_t stored_hash = 0;
};

struct PackedIndex {
  static constexpr uint64_t kHeaderSize = 16;  // in front of all frames
  static constexpr uint64_t kFooterSize = 32;  // behind the index, the end of the file

  // In the order of the content, which they tile from its first byte on. They may be stored in
  // another order.
  std::vector<PackedFrame> frames;
  // Of the whole content, if whoever packed it wanted it.
  std::optional<Sha256Digest> sha256 = {};

  uint64_t content_size() const;

  // The first kHeaderSize bytes of every packed file.
  static std::string header();
  // What follows the frames, which end at `offset`: the index and the footer.
  std::string trailer(uint64_t offset) const;

  // Where the index lies, by the header and the footer of a file of `file_size` bytes. All throw
  // CorruptError (with the offset) for whatever trailer() does not write, UnsupportedError for
  // another version.
  struct Place {
    uint64_t offset = 0;
    uint64_t size = 0;
  };
  static Place find(ByteSpan header, ByteSpan footer, uint64_t file_size);
  // `index` are the bytes at `place`. The frames tile the content, and their stored bytes the file
  // between header and index.
  static PackedIndex parse(ByteSpan index, ByteSpan footer, Place place);
};

}  // namespace dsckpt
