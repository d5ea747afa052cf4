// Frames of a packed file: up to 16 MiB of content, in byte planes, each compressed by itself.
// Byte layout in format/FORMATS.md, "Packed files".
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
// A frame is at most so many bytes larger than its content.
inline constexpr uint64_t kMostFrameOverhead = 1 + PlaneLayout::kMostPlanes * 5;

inline constexpr int kLowestPackLevel = 1;
inline constexpr int kHighestPackLevel = 19;
inline constexpr int kDefaultPackLevel = 1;

// One thread's.
class FrameEncoder {
 public:
  // `level`: zstd's, kLowestPackLevel to kHighestPackLevel. It matters where repetitions pay; what
  // only has uneven bytes, such as the exponents of weights, is entropy-coded at any level.
  // Throws UnsupportedError if zstd refuses a parameter.
  explicit FrameEncoder(int level);
  ~FrameEncoder();
  FrameEncoder(const FrameEncoder&) = delete;
  FrameEncoder& operator=(const FrameEncoder&) = delete;

  // The frame of `content`, 1 to kLargestFrame bytes; valid until the next call. The same for the
  // same content, layout, level and version of zstd.
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

// One thread's.
class FrameDecoder {
 public:
  FrameDecoder();
  ~FrameDecoder();
  FrameDecoder(const FrameDecoder&) = delete;
  FrameDecoder& operator=(const FrameDecoder&) = delete;

  // Fills `content`, which has the frame's size. Throws CorruptError (offset in the frame) for
  // anything but a frame of just as many bytes; takes memory only for content.size().
  void decode(ByteSpan frame, std::span<std::byte> content);

 private:
  struct Zstd;
  std::unique_ptr<Zstd> zstd_;
  std::vector<std::byte> planes_;
};

}  // namespace dsckpt
