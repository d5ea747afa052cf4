#include "codec/frame.h"

#define ZSTD_STATIC_LINKING_ONLY  // ZSTD_c_literalCompressionMode
#include <zstd.h>
#include <zstd_errors.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <initializer_list>
#include <memory>
#include <new>
#include <string>
#include <utility>

#include "base/text.h"

namespace dsckpt {
namespace {

constexpr uint8_t kRotatedFlag = 0x80;
constexpr size_t kPlaneHeader = 5;  // method, size

// A plane is judged by samples: four pieces for the entropy of its bytes, one for repetitions.
constexpr size_t kPieces = 4;
constexpr size_t kPiece = 2048;
constexpr size_t kSample = 16 << 10;
// A plane with more bits a byte than this is not worth compressing.
constexpr double kWorthCoding = 7.9;
// The whole plane is searched for repetitions if they shrink the sample to less than this part.
constexpr double kWorthSearching = 0.97;
// A plane is stored raw unless compression makes it smaller than this part of its size.
constexpr double kWorthKeeping = 0.99;

size_t with_memory(size_t result) {
  if (ZSTD_getErrorCode(result) == ZSTD_error_memory_allocation) throw std::bad_alloc();
  return result;
}

size_t checked(size_t result) {
  if (ZSTD_isError(with_memory(result))) throw CorruptError({}, ZSTD_getErrorName(result));
  return result;
}

// Returns the entropy in bits a byte of `pieces` samples of `plane`. One piece is the whole plane.
double entropy(ByteSpan plane, size_t pieces) {
  std::array<std::array<uint32_t, 256>, 2> counts{};
  size_t total = 0;
  const size_t size = pieces == 1 ? plane.size() : kPiece;
  for (size_t piece = 0; piece < pieces; ++piece) {
    const std::byte* const at = plane.data() + piece * (plane.size() / pieces);
    for (size_t i = 0; i < size; ++i) ++counts[i % 2][std::to_integer<uint8_t>(at[i])];
    total += size;
  }
  double bits = 0;
  for (size_t value = 0; value < 256; ++value) {
    const double count = counts[0][value] + counts[1][value];
    if (count > 0) bits -= count * std::log2(count / static_cast<double>(total));
  }
  return bits / static_cast<double>(total);
}

}  // namespace

enum class FrameEncoder::Method : uint8_t {
  raw = 0,
  zstd = 1,
  entropy = 2,  // zstd without looking for matches; stored as zstd
};

class FrameEncoder::Zstd {
 public:
  explicit Zstd(std::initializer_list<std::pair<ZSTD_cParameter, int>> parameters) {
    if (!context_) throw std::bad_alloc();
    for (const auto& [parameter, value] : parameters) set(parameter, value);
    set(ZSTD_c_contentSizeFlag, 0);
    set(ZSTD_c_checksumFlag, 0);
  }

  // Returns the compressed size of `plane` in `out`, or ~0 if there is too little room.
  size_t compress(ByteSpan plane, std::span<std::byte> out) {
    const size_t size = with_memory(
        ZSTD_compress2(context_.get(), out.data(), out.size(), plane.data(), plane.size()));
    return ZSTD_isError(size) ? ~size_t{0} : size;
  }

 private:
  struct Free {
    void operator()(ZSTD_CCtx* context) const { ZSTD_freeCCtx(context); }
  };

  // This parameter is experimental: another version of zstd may not have it.
  void set(ZSTD_cParameter parameter, int value) {
    const size_t result = ZSTD_CCtx_setParameter(context_.get(), parameter, value);
    if (!ZSTD_isError(result)) return;
    throw UnsupportedError({}, "parameter " + std::to_string(parameter) + " of zstd " +
                                   ZSTD_versionString() + ": " + ZSTD_getErrorName(result));
  }

  std::unique_ptr<ZSTD_CCtx, Free> context_{ZSTD_createCCtx()};
};

// The second compressor finds no matches, since it steps as far as a block is long. With such a
// target length zstd would not compress literals either, unless told to.
FrameEncoder::FrameEncoder(int level)
    : matching_(new Zstd(
          {{ZSTD_c_compressionLevel, std::clamp(level, kLowestPackLevel, kHighestPackLevel)}})),
      entropy_(new Zstd({{ZSTD_c_compressionLevel, 1},
                         {ZSTD_c_strategy, ZSTD_fast},
                         {ZSTD_c_targetLength, ZSTD_TARGETLENGTH_MAX},
                         {ZSTD_c_hashLog, ZSTD_HASHLOG_MIN},
                         {ZSTD_c_literalCompressionMode, ZSTD_lcm_huffman}})) {}
FrameEncoder::~FrameEncoder() = default;

ByteSpan FrameEncoder::encode(ByteSpan content, PlaneLayout layout) {
  const size_t count = content.size() / layout.width;
  const size_t in_planes = count * layout.width;
  const size_t headers = 1 + layout.width * kPlaneHeader;
  const ByteSpan tail = content.subspan(in_planes);
  // No plane is stored larger than it is. The rest of the room is for samples.
  frame_.resize(std::max(frame_.size(), headers + content.size() + ZSTD_compressBound(kSample)));

  ByteSpan planes = content;
  if (layout.width > 1) {
    planes_.resize(std::max(planes_.size(), in_planes));
    split_planes(layout, content.first(in_planes), planes_);
    planes = ByteSpan(planes_).first(in_planes);
  }
  frame_[0] = static_cast<std::byte>(layout.width | (layout.rotated ? kRotatedFlag : 0));
  std::copy(tail.begin(), tail.end(), frame_.begin() + static_cast<ptrdiff_t>(headers));
  size_ = headers + tail.size();
  for (size_t p = 0; p < layout.width; ++p) {
    append_plane(planes.subspan(p * count, count), frame_.data() + 1 + p * kPlaneHeader);
  }
  return ByteSpan(frame_).first(size_);
}

void FrameEncoder::append_plane(ByteSpan plane, std::byte* header) {
  Method method = choose_method(plane);
  const std::span<std::byte> room = std::span(frame_).subspan(size_);
  size_t size = plane.size();
  if (method != Method::raw) {
    const auto most = static_cast<size_t>(static_cast<double>(plane.size()) * kWorthKeeping);
    Zstd& compressor = method == Method::zstd ? *matching_ : *entropy_;
    size = compressor.compress(plane, room.first(most));
    if (size > most) {
      method = Method::raw;
      size = plane.size();
    }
  }
  if (method == Method::raw) std::copy(plane.begin(), plane.end(), room.begin());
  header[0] = static_cast<std::byte>(method == Method::raw ? Method::raw : Method::zstd);
  store_le(header + 1, static_cast<uint32_t>(size));
  size_ += size;
}

FrameEncoder::Method FrameEncoder::choose_method(ByteSpan plane) {
  if (plane.empty()) return Method::raw;
  if (plane.size() <= kSample) return Method::zstd;
  const ByteSpan sample = plane.subspan((plane.size() - kSample) / 2, kSample);
  const double bits = entropy(plane, kPieces);
  // Bytes this evenly spread hardly repeat, and a sample would not show it.
  if (bits > kWorthCoding) return Method::raw;
  const std::span<std::byte> room = std::span(frame_).subspan(size_);
  const auto with_matches = static_cast<double>(matching_->compress(sample, room));
  // A Huffman code takes at least one bit a byte.
  const double bits_each = std::max(entropy(sample, 1), 1.0);
  const double without = bits_each * static_cast<double>(sample.size()) / 8;
  return with_matches < without * kWorthSearching ? Method::zstd : Method::entropy;
}

struct FrameDecoder::Zstd {
  ZSTD_DCtx* context = ZSTD_createDCtx();
  Zstd() {
    if (context == nullptr) throw std::bad_alloc();
  }
  ~Zstd() { ZSTD_freeDCtx(context); }
  Zstd(const Zstd&) = delete;
  Zstd& operator=(const Zstd&) = delete;
};

FrameDecoder::FrameDecoder() : zstd_(std::make_unique<Zstd>()) {}
FrameDecoder::~FrameDecoder() = default;

void FrameDecoder::decode(ByteSpan frame, std::span<std::byte> content) {
  ByteReader reader(frame);
  const auto first = reader.read<uint8_t>();
  const PlaneLayout layout{static_cast<uint8_t>(first & ~kRotatedFlag),
                           (first & kRotatedFlag) != 0};
  if (!layout.is_valid()) throw CorruptError({.offset = 0}, "not a layout of planes");
  const size_t count = content.size() / layout.width;
  const ByteSpan headers = reader.take(layout.width * kPlaneHeader);
  const ByteSpan tail = reader.take(content.size() % layout.width);
  std::copy(tail.begin(), tail.end(), content.last(tail.size()).begin());
  const std::span<std::byte> elements = content.first(content.size() - tail.size());
  if (layout.width > 1) planes_.resize(std::max(planes_.size(), elements.size()));

  std::array<const std::byte*, PlaneLayout::kMostPlanes> planes;
  for (size_t p = 0; p < layout.width; ++p) {
    const std::byte* const header = headers.data() + p * kPlaneHeader;
    const uint64_t at = reader.offset();
    const ByteSpan stored = reader.take(load_le<uint32_t>(header + 1));
    const auto method = static_cast<uint8_t>(header[0]);
    planes[p] = stored.data();
    bool good = method == 0 && stored.size() == count;
    if (method == 1) {
      std::byte* const target = layout.width > 1 ? planes_.data() + p * count : elements.data();
      good = in_context({.offset = at}, [&] {
        return checked(ZSTD_decompressDCtx(zstd_->context, target, count, stored.data(),
                                           stored.size())) == count;
      });
      planes[p] = target;
    }
    if (!good) throw CorruptError({.offset = at}, "not a plane of " + counted(count, "byte"));
  }
  if (!reader.at_end()) throw CorruptError({.offset = reader.offset()}, "bytes behind the planes");
  if (layout.width > 1) {
    join_planes(layout, std::span(planes).first(layout.width), elements);
  } else if (planes[0] != elements.data()) {
    std::copy_n(planes[0], count, elements.begin());
  }
}

}  // namespace dsckpt
