// Frames of a packed file: up to 16 MiB of content, split into byte planes that are compressed one
// by one. Byte layout: format/FORMATS.md, "Packed files".
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/bytes.h"
#include "codec/planes.h"

namespace dsckpt {

inline constexpr uint64_t kLargestFrame = 16 << 20;  // content, bytes
// The most bytes by which a frame exceeds its content.
inline constexpr uint64_t kMostFrameOverhead = 1 + PlaneLayout::kMostPlanes * 5;

inline constexpr int kLowestPackLevel = 1;
inline constexpr int kHighestPackLevel = 19;
inline constexpr int kDefaultPackLevel = 1;

// For one thread.
class FrameEncoder {
 public:
  // `level` is zstd's, kLowestPackLevel to kHighestPackLevel. It matters where bytes repeat. Planes
  // that only have uneven bytes, such as the exponents of weights, are entropy-coded at any level.
  // Throws UnsupportedError if zstd refuses a parameter.
  explicit FrameEncoder(int level);
  ~FrameEncoder();
  FrameEncoder(const FrameEncoder&) = delete;
  FrameEncoder& operator=(const FrameEncoder&) = delete;

  // The frame of `content`, 1 to kLargestFrame bytes; valid until the next call. Equal content,
  // layout, level and zstd version give equal frames.
  ByteSpan encode(ByteSpan content, PlaneLayout layout);

 private:
  class Zstd;
  enum class Method : uint8_t;
  void append_plane(ByteSpan plane, std::byte* header);
  Method choose_method(ByteSpan plane);
  std::unique_ptr<Zstd> matching_;  // of the level
  std::unique_ptr<Zstd> entropy_;   // without matches
  std::vector<std::byte> planes_;
  std::vector<std::byte> frame_;
  size_t size_ = 0;  // of frame_, what is in use
};

// For one thread.
class FrameDecoder {
 public:
  FrameDecoder();
  ~FrameDecoder();
  FrameDecoder(const FrameDecoder&) = delete;
  FrameDecoder& operator=(const FrameDecoder&) = delete;

  // Fills `content`, which has the frame's size. Throws CorruptError (offset in the frame) unless
  // the frame has exactly that many bytes of content. Takes memory only for content.size().
  void decode(ByteSpan frame, std::span<std::byte> content);

 private:
  struct Zstd;
  std::unique_ptr<Zstd> zstd_;
  std::vector<std::byte> planes_;
};

}  // namespace dsckpt
