#include "io/packed_file.h"

#include <algorithm>
#include <string>

#include "codec/frame.h"
#include "codec/xxh3.h"
#include "dsckpt/error.h"

namespace dsckpt {
namespace {

std::vector<std::byte> read(const StoredFile& file, uint64_t offset, uint64_t size) {
  std::vector<std::byte> out(static_cast<size_t>(size));
  file.read_at(offset, out);
  return out;
}

PackedIndex read_index(const StoredFile& file) {
  return in_context({.file = file.display()}, [&] {
    if (file.size() < PackedIndex::kHeaderSize + PackedIndex::kFooterSize) {
      throw CorruptError({.offset = file.size()}, "is too short for a packed file");
    }
    const auto header = read(file, 0, PackedIndex::kHeaderSize);
    const auto footer =
        read(file, file.size() - PackedIndex::kFooterSize, PackedIndex::kFooterSize);
    const PackedIndex::Place place = PackedIndex::find(header, footer, file.size());
    return PackedIndex::parse(read(file, place.offset, place.size), footer, place);
  });
}

}  // namespace

PackedFile::PackedFile(const StoredFile& file) : file_(file), index_(read_index(file)) {
  begins_.reserve(index_.frames.size() + 1);
  uint64_t begin = 0;
  for (const PackedFrame& frame : index_.frames) {
    begins_.push_back(begin);
    begin += frame.content_size;
  }
  begins_.push_back(begin);
}

size_t PackedFile::frame_of(uint64_t offset) const {
  const auto after = std::upper_bound(begins_.begin(), begins_.end(), offset);
  return static_cast<size_t>(after - begins_.begin()) - 1;
}

void PackedFile::read_at(uint64_t offset, std::span<std::byte> out) {
  for (size_t frame = out.empty() ? 0 : frame_of(offset); !out.empty(); ++frame) {
    // A caller who reads a whole frame will not ask for it again, so it bypasses the cache.
    const uint32_t content = index_.frames[frame].content_size;
    if (offset == begins_[frame] && out.size() >= content) {
      decode(frame, out.first(content));
      out = out.subspan(content);
      offset += content;
      continue;
    }
    const SharedBlock block = cache_.get(frame, [&] {
      auto made = std::make_shared<CachedBlock>(content);
      decode(frame, made->bytes());
      return made;
    });
    const auto from = block->bytes().subspan(offset - begins_[frame]);
    const size_t size = std::min(from.size(), out.size());
    std::copy_n(from.begin(), size, out.begin());
    out = out.subspan(size);
    offset += size;
  }
}

void PackedFile::decode(size_t frame, std::span<std::byte> content) const {
  thread_local std::vector<std::byte> stored;
  thread_local FrameDecoder decoder;
  const PackedFrame& place = index_.frames[frame];
  stored.resize(place.stored_size);
  file_.read_at(place.offset, stored);
  const Where where{.file = file_.display(), .offset = place.offset};
  const auto damaged = [&](const std::string& how) {
    return CorruptError(where, "the frame of bytes " + std::to_string(begins_[frame]) + " to " +
                                   std::to_string(begins_[frame + 1]) + " " + how);
  };
  if (xxh3(stored) != place.stored_hash) throw damaged("does not match its checksum");
  try {
    decoder.decode(stored, content);
  } catch (const CorruptError& error) {
    throw damaged("cannot be decompressed: " + error.message());
  }
  if (xxh3(content) != place.content_hash) {
    throw damaged("does not match its checksum after decompression");
  }
}

uint64_t PackedFile::stored_offset(uint64_t offset) const {
  return offset < size() ? index_.frames[frame_of(offset)].offset : 0;
}

double PackedFile::stored_bytes(uint64_t offset, uint64_t size) const {
  double sum = 0;
  const uint64_t end = offset + size;
  for (size_t frame = frame_of(offset); frame < index_.frames.size() && begins_[frame] < end;
       ++frame) {
    const uint64_t shared = std::min(end, begins_[frame + 1]) - std::max(offset, begins_[frame]);
    sum += static_cast<double>(index_.frames[frame].stored_size) * static_cast<double>(shared) /
           index_.frames[frame].content_size;
  }
  return sum;
}

}  // namespace dsckpt
