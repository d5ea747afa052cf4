#include "codec/packed_index.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "base/text.h"
#include "codec/frame.h"
#include "codec/xxh3.h"

namespace dsckpt {
namespace {

// Built like PNG's: a transfer in text mode damages it at once.
constexpr std::string_view kMagic =
    "\x89"
    "DSPACK\n";
constexpr std::string_view kEndMagic = "DSPEND\r\n";
constexpr uint32_t kVersion = 1;
constexpr uint64_t kFixedSize = 8 + sizeof(Sha256Digest);  // of the index, before the frames
constexpr uint64_t kEntrySize = 32;
constexpr uint64_t kHashedFooter = 16;  // index offset and size
// A zstd block has at least 4 bytes and becomes at most 128 KiB. A frame that claims more is
// refused before memory is allocated for it.
constexpr uint64_t kMostOfAByte = 32 << 10;

uint64_t hash_of(ByteSpan index, ByteSpan footer) {
  std::string both(as_text(index));
  both += as_text(footer.first(kHashedFooter));
  return xxh3(as_byte_span(both));
}

}  // namespace

uint64_t PackedIndex::content_size() const {
  uint64_t sum = 0;
  for (const PackedFrame& frame : frames) sum += frame.content_size;
  return sum;
}

std::string PackedIndex::header() {
  std::string out(kMagic);
  append_le(out, kVersion);
  append_le(out, uint32_t{0});
  return out;
}

std::string PackedIndex::trailer(uint64_t offset) const {
  std::string out;
  out.reserve(kFixedSize + frames.size() * kEntrySize + kFooterSize);
  append_le(out, static_cast<uint64_t>(frames.size()));
  out += as_text(sha256.value_or(Sha256Digest{}));
  for (const PackedFrame& frame : frames) {
    append_le(out, frame.offset);
    append_le(out, frame.stored_size);
    append_le(out, frame.content_size);
    append_le(out, frame.content_hash);
    append_le(out, frame.stored_hash);
  }
  std::string footer;
  append_le(footer, offset);
  append_le(footer, static_cast<uint64_t>(out.size()));
  append_le(footer, hash_of(as_byte_span(out), as_byte_span(footer)));
  return out + footer + std::string(kEndMagic);
}

PackedIndex::Place PackedIndex::find(ByteSpan header, ByteSpan footer, uint64_t file_size) {
  if (!as_text(header).starts_with(kMagic)) throw CorruptError({.offset = 0}, "not a packed file");
  ByteReader begin(header.subspan(kMagic.size()), kMagic.size());
  if (const auto version = begin.read<uint32_t>(); version != kVersion) {
    throw UnsupportedError({.offset = kMagic.size()},
                           "a packed file of version " + std::to_string(version) +
                               "; this program reads version " + std::to_string(kVersion));
  }
  if (begin.read<uint32_t>() != 0) {
    throw CorruptError({.offset = kHeaderSize - 4}, "a reserved field is not zero");
  }
  const uint64_t footer_at = file_size - kFooterSize;
  ByteReader end(footer, footer_at);
  const Place place{end.read<uint64_t>(), end.read<uint64_t>()};
  end.take(sizeof(uint64_t));
  if (end.text(kEndMagic.size()) != kEndMagic) {
    throw CorruptError({.offset = footer_at}, "the end of a packed file is missing: cut short?");
  }
  if (place.offset < kHeaderSize || place.offset > footer_at ||
      place.size != footer_at - place.offset || place.size < kFixedSize ||
      (place.size - kFixedSize) % kEntrySize != 0) {
    throw CorruptError({.offset = footer_at}, "the index is not where the footer says");
  }
  return place;
}

PackedIndex PackedIndex::parse(ByteSpan index, ByteSpan footer, Place place) {
  if (hash_of(index, footer) != load_le<uint64_t>(footer.data() + kHashedFooter)) {
    throw CorruptError({.offset = place.offset}, "the index does not match its checksum");
  }
  ByteReader reader(index, place.offset);
  PackedIndex out;
  const uint64_t count = (place.size - kFixedSize) / kEntrySize;
  if (reader.read<uint64_t>() != count) {
    throw CorruptError({.offset = place.offset}, "the index has another number of frames");
  }
  Sha256Digest sha{};
  const ByteSpan stored_sha = reader.take(sizeof sha);
  std::copy(stored_sha.begin(), stored_sha.end(), sha.begin());
  if (sha != Sha256Digest{}) out.sha256 = sha;

  out.frames.reserve(count);
  uint64_t content = 0;
  while (!reader.at_end()) {
    const uint64_t at = reader.offset();
    PackedFrame frame;
    frame.offset = reader.read<uint64_t>();
    frame.stored_size = reader.read<uint32_t>();
    frame.content_size = reader.read<uint32_t>();
    frame.content_hash = reader.read<uint64_t>();
    frame.stored_hash = reader.read<uint64_t>();
    if (frame.content_size == 0 || frame.content_size > kLargestFrame ||
        frame.stored_size > frame.content_size + kMostFrameOverhead ||
        frame.content_size > frame.stored_size * kMostOfAByte) {
      throw CorruptError({.offset = at}, counted(frame.content_size, "byte") + " in a frame of " +
                                             std::to_string(frame.stored_size));
    }
    content = checked_add(content, frame.content_size);
    out.frames.push_back(frame);
  }

  std::vector<size_t> by_offset(out.frames.size());
  std::iota(by_offset.begin(), by_offset.end(), size_t{0});
  std::sort(by_offset.begin(), by_offset.end(),
            [&](size_t a, size_t b) { return out.frames[a].offset < out.frames[b].offset; });
  uint64_t stored = kHeaderSize;
  for (const size_t i : by_offset) {
    if (out.frames[i].offset != stored) {
      throw CorruptError({.offset = stored}, "bytes of no frame, or of two");
    }
    stored += out.frames[i].stored_size;
  }
  if (stored != place.offset) throw CorruptError({.offset = stored}, "bytes of no frame");
  return out;
}

}  // namespace dsckpt
