// Common parts of tests of packed files. They implement the format a second time, from its
// description (format/FORMATS.md, section 5), and have contents of many kinds.
#pragma once

#include <xxhash.h>
#include <zstd.h>

#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <random>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "base/bytes.h"
#include "codec/planes.h"
#include "fuzz/memory_file.h"
#include "io/content_reader.h"
#include "io/stored_file.h"
#include "support/plan_tools.h"

namespace dsckpt::test {

inline constexpr std::array<PlaneLayout, 6> kLayouts{
    {{1, false}, {2, false}, {2, true}, {4, false}, {4, true}, {8, false}}};

inline uint64_t hash_of(std::string_view bytes) {
  return XXH3_64bits(bytes.data(), bytes.size());
}

// The planes of `elements`, element by element and byte by byte.
inline std::string planes_by_definition(PlaneLayout layout, std::string_view elements) {
  const size_t count = elements.size() / layout.width;
  const unsigned bits = 8U * layout.width;
  std::string planes(count * layout.width, '\0');
  for (size_t i = 0; i < count; ++i) {
    uint64_t value = 0;
    std::memcpy(&value, elements.data() + i * layout.width, layout.width);
    if (layout.rotated) value = value << 1 | value >> (bits - 1);
    for (size_t p = 0; p < layout.width; ++p) {
      planes[p * count + i] = static_cast<char>(value >> (8 * p));
    }
  }
  return planes;
}

// A frame with no plane compressed.
inline std::string raw_frame(PlaneLayout layout, std::string_view content) {
  const size_t count = content.size() / layout.width;
  std::string frame(1, static_cast<char>(layout.width | (layout.rotated ? 0x80 : 0)));
  for (size_t p = 0; p < layout.width; ++p) {
    frame += '\0';
    append_le(frame, static_cast<uint32_t>(count));
  }
  frame += content.substr(count * layout.width);
  return frame + planes_by_definition(layout, content);
}

// Returns the content of a frame, with planes joined element by element.
inline std::string content_by_definition(std::string_view frame, size_t content_size) {
  const auto width = static_cast<uint8_t>(frame[0] & 0x7F);
  const bool rotated = (frame[0] & 0x80) != 0;
  const size_t count = content_size / width;
  const std::string_view tail = frame.substr(1 + 5U * width, content_size % width);
  size_t at = 1 + 5U * width + tail.size();
  std::string content(count * width, '\0');
  std::vector<uint64_t> values(count);
  for (size_t p = 0; p < width; ++p) {
    const char* const header = frame.data() + 1 + 5 * p;
    uint32_t size = 0;
    std::memcpy(&size, header + 1, sizeof size);
    std::string plane(frame.substr(at, size));
    at += size;
    if (header[0] == 1) {
      std::string whole(count, '\0');
      const size_t got = ZSTD_decompress(whole.data(), count, plane.data(), plane.size());
      if (got != count) throw std::runtime_error("a plane is not a zstd frame of its size");
      plane = std::move(whole);
    }
    for (size_t i = 0; i < count; ++i) {
      values[i] |= uint64_t{static_cast<uint8_t>(plane.at(i))} << (8 * p);
    }
  }
  if (at != frame.size()) throw std::runtime_error("bytes behind the planes");
  for (size_t i = 0; i < count; ++i) {
    const uint64_t value =
        rotated ? values[i] >> 1 | (values[i] & 1) << (8U * width - 1) : values[i];
    std::memcpy(content.data() + i * width, &value, width);
  }
  return content + std::string(tail);
}

// One frame of a packed file that a test writes.
struct FrameBytes {
  std::string content;
  std::string stored;
};

struct IndexEntry {
  uint64_t offset;
  uint32_t stored_size;
  uint32_t content_size;
  uint64_t content_hash;
  uint64_t stored_hash;
};

// Index and footer for an index that begins at `offset` and says it has `count` frames.
inline std::string index_bytes(uint64_t offset, uint64_t count,
                               const std::vector<IndexEntry>& entries,
                               std::string_view sha256 = {}) {
  std::string out;
  append_le(out, count);
  out += sha256;
  out.resize(40);
  for (const IndexEntry& entry : entries) {
    append_le(out, entry.offset);
    append_le(out, entry.stored_size);
    append_le(out, entry.content_size);
    append_le(out, entry.content_hash);
    append_le(out, entry.stored_hash);
  }
  const auto size = static_cast<uint64_t>(out.size());
  append_le(out, offset);
  append_le(out, size);
  append_le(out, hash_of(out));
  return out + "DSPEND\r\n";
}

inline const std::string kPackedHeader(
    "\x89"
    "DSPACK\n\1\0\0\0\0\0\0\0",
    16);

// A packed file of these frames. With `order`, the numbers of all frames, they are stored so.
inline std::string packed_bytes(const std::vector<FrameBytes>& frames,
                                std::vector<size_t> order = {}, std::string_view sha256 = {}) {
  for (size_t i = order.size(); i < frames.size(); ++i) order.push_back(i);
  std::string out = kPackedHeader;
  std::vector<IndexEntry> entries(frames.size());
  for (const size_t i : order) {
    const FrameBytes& frame = frames[i];
    entries[i] = {out.size(), static_cast<uint32_t>(frame.stored.size()),
                  static_cast<uint32_t>(frame.content.size()), hash_of(frame.content),
                  hash_of(frame.stored)};
    out += frame.stored;
  }
  return out + index_bytes(out.size(), frames.size(), entries, sha256);
}

// A file that is only in memory, opened as stored.
class StoredBytes {
 public:
  explicit StoredBytes(std::string_view bytes, const std::string& display = "x.pt.dspack")
      : memory_(reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size()),
        file_(memory_.path(), display) {}
  operator const StoredFile&() const { return file_; }

 private:
  MemoryFile memory_;
  StoredFile file_;
};

inline std::string read_content(ContentReader& reader, uint64_t offset, uint64_t size) {
  std::string out(size, '\0');
  reader.read_at(offset, std::as_writable_bytes(std::span(out)));
  return out;
}
inline std::string read_content(ContentReader& reader) {
  return read_content(reader, 0, reader.size());
}

enum class Content { zeros, random, normal_floats, text, repeated, sparse };
inline constexpr std::array kContents{Content::zeros, Content::random,   Content::normal_floats,
                                      Content::text,  Content::repeated, Content::sparse};

inline std::string make_content(Content kind, size_t size, uint64_t seed = 1) {
  std::mt19937_64 random(seed);
  std::string out(size, '\0');
  switch (kind) {
    case Content::zeros:
      break;
    case Content::random:
      return random_bytes(size, seed);
    case Content::normal_floats: {
      std::normal_distribution<float> normal(0, 0.02F);
      for (size_t i = 0; i < size; i += sizeof(float)) {
        const float value = normal(random);
        std::memcpy(out.data() + i, &value, std::min(sizeof value, size - i));
      }
      break;
    }
    case Content::text: {
      constexpr std::array kWords{"the ",   "layer ", "of ",     "weights ", "and ",    "bias ",
                                  "model.", "0.125 ", "decoder", ", ",       "(norm) ", "\n"};
      out.clear();
      while (out.size() < size) out += kWords[random() % kWords.size()];
      out.resize(size);
      break;
    }
    case Content::repeated: {
      const std::string piece = random_bytes(64 << 10, seed);
      for (size_t i = 0; i < size; ++i) out[i] = piece[i % piece.size()];
      break;
    }
    case Content::sparse:
      for (size_t i = 0; i < size / 100; ++i) out[random() % size] = static_cast<char>(random());
      break;
  }
  return out;
}

}  // namespace dsckpt::test
