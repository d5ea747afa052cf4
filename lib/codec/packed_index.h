// The header and the index of a packed file, which list its frames. Byte layout: format/FORMATS.md,
// "Packed files".
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/bytes.h"
#include "base/sha256.h"

namespace dsckpt {

// The suffix of a packed file, behind the name of the file that it holds.
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

  // In the order of the content, which they tile from its first byte on. In the file they may have
  // another order.
  std::vector<PackedFrame> frames;
  // The hash of the whole content, if the packer was asked for it.
  std::optional<Sha256Digest> sha256 = {};

  uint64_t content_size() const;

  // The first kHeaderSize bytes of every packed file.
  static std::string header();
  // The bytes behind the frames, which end at `offset`: the index and the footer.
  std::string trailer(uint64_t offset) const;

  // The place of the index. find() takes it from the header and the footer of a file of `file_size`
  // bytes. Both find() and parse() throw CorruptError (with the offset) for anything that trailer()
  // does not write. They throw UnsupportedError for another version.
  struct Place {
    uint64_t offset = 0;
    uint64_t size = 0;
  };
  static Place find(ByteSpan header, ByteSpan footer, uint64_t file_size);
  // Parses `index`, the bytes at `place`. The frames must tile the content, and their stored bytes
  // must fill the file between header and index.
  static PackedIndex parse(ByteSpan index, ByteSpan footer, Place place);
};

}  // namespace dsckpt
