#include "io/zstd_frames.h"

#define ZSTD_STATIC_LINKING_ONLY  // ZSTD_getFrameHeader
#include <zstd.h>
#include <zstd_errors.h>

#include <algorithm>
#include <array>
#include <new>
#include <span>
#include <string>

#include "base/bytes.h"

namespace dsckpt {
namespace {

constexpr uint32_t kSkippableMagic = 0x184D2A50;  // any last four bits
constexpr uint32_t kSeekTableFrame = 0x184D2A5E;
constexpr uint32_t kSeekTableMagic = 0x8F92EAB1;
constexpr uint64_t kSeekTableFooter = 9;
constexpr const char* kOtherTable = "the seek table is not that of the frames before it";
constexpr uint64_t kBlockHeader = 3;
constexpr uint64_t kChecksum = 4;
constexpr uint64_t kLargestBlock = 128 << 10;  // content
constexpr uint64_t kSmallestBlock = 4;         // stored size of a block with that content
constexpr uint64_t kMostOfNothing = 64;        // stored size of an empty frame

bool is_skippable(uint32_t magic) {
  return (magic & 0xFFFFFFF0) == kSkippableMagic;
}

class Frames {
 public:
  explicit Frames(const StoredFile& file) : file_(file), end_(file.size()) {}

  // Returns the frames with content, then the ends of file and content. Returns nullopt if a header
  // does not have the size of its frame's content.
  std::optional<std::vector<ZstdFrame>> find() {
    if (file_.size() == 0) throw CorruptError({.file = file_.display()}, "is empty: no zstd file");
    if (!read_seek_table() && !walk()) return std::nullopt;
    frames_.push_back({end_, content_});
    return std::move(frames_);
  }

 private:
  template <typename T>
  T read(uint64_t offset) const {
    std::array<std::byte, sizeof(T)> bytes;
    file_.read_at(offset, bytes);
    return load_le<T>(bytes.data());
  }

  CorruptError corrupt(uint64_t offset, const std::string& why) const {
    return {{.file = file_.display(), .offset = offset}, why};
  }

  // Empty frames are never read, so a frame that a seek table or its header calls empty is checked
  // here.
  void check_empty(uint64_t stored, uint64_t size) const {
    if (size >= kZstdSkippableHeader && is_skippable(read<uint32_t>(stored)) &&
        kZstdSkippableHeader + read<uint32_t>(stored + 4) == size) {
      return;
    }
    std::vector<std::byte> frame(size <= kMostOfNothing ? size : 0);
    file_.read_at(stored, frame);
    if (frame.size() < size || ZSTD_decompress(nullptr, 0, frame.data(), size) != 0) {
      throw corrupt(stored, "a zstd frame is called empty and is not");
    }
  }

  // `most`: the limit of the frame's content. Without it a header of a few bytes could make a
  // reader allocate any amount of memory.
  void add(uint64_t stored, uint64_t content, uint64_t most) {
    if (content > most) throw corrupt(stored, "a zstd frame of more than its blocks can hold");
    if (content > 0) frames_.push_back({stored, content_});
    content_ = checked_add(content_, content);
  }

  bool read_seek_table() {
    const uint64_t size = file_.size();
    if (size < kZstdSkippableHeader + kSeekTableFooter ||
        read<uint32_t>(size - 4) != kSeekTableMagic) {
      return false;
    }
    const uint64_t footer = size - kSeekTableFooter;
    const uint64_t count = read<uint32_t>(footer);
    const auto descriptor = read<uint8_t>(footer + 4);
    const uint64_t entry_size = (descriptor & 0x80) != 0 ? 12 : 8;
    const uint64_t table_size = count * entry_size;
    if ((descriptor & 0x7C) != 0 || table_size > footer - kZstdSkippableHeader) {
      throw corrupt(footer, "not a seek table");
    }
    const uint64_t begin = footer - table_size - kZstdSkippableHeader;
    if (read<uint32_t>(begin) != kSeekTableFrame ||
        read<uint32_t>(begin + 4) != table_size + kSeekTableFooter) {
      throw corrupt(begin, "not a seek table");
    }
    std::vector<std::byte> table(table_size);
    file_.read_at(begin + kZstdSkippableHeader, table);
    uint64_t stored = 0;
    for (uint64_t at = 0; at < table_size; at += entry_size) {
      const uint64_t of_frame = load_le<uint32_t>(table.data() + at);
      const uint64_t content = load_le<uint32_t>(table.data() + at + 4);
      if (of_frame > begin - stored) throw corrupt(begin, kOtherTable);
      if (content == 0) check_empty(stored, of_frame);
      add(stored, content, of_frame / kSmallestBlock * kLargestBlock);
      stored += of_frame;
    }
    end_ = begin;
    if (stored != begin) throw corrupt(begin, kOtherTable);
    return true;
  }

  // Walks from header to header. Returns false if a frame's header has no content size.
  bool walk() {
    for (uint64_t at = 0; at < file_.size();) {
      const uint64_t left = file_.size() - at;
      if (left < kZstdSkippableHeader) throw corrupt(at, "cut short in the header of a zstd frame");
      if (is_skippable(read<uint32_t>(at))) {
        const uint64_t size = kZstdSkippableHeader + read<uint32_t>(at + 4);
        if (size > left) throw corrupt(at, "a zstd frame is cut short");
        at += size;
        continue;
      }
      std::array<std::byte, ZSTD_FRAMEHEADERSIZE_MAX> bytes;
      const auto header_bytes = std::span(bytes).first(std::min<uint64_t>(left, bytes.size()));
      file_.read_at(at, header_bytes);
      ZSTD_frameHeader header{};
      const size_t result = ZSTD_getFrameHeader(&header, header_bytes.data(), header_bytes.size());
      if (ZSTD_isError(result) && ZSTD_getErrorCode(result) != ZSTD_error_prefix_unknown) {
        refuse_zstd({.file = file_.display(), .offset = at}, result);
      }
      if (result != 0) throw corrupt(at, "not a zstd frame");
      if (header.frameContentSize == ZSTD_CONTENTSIZE_UNKNOWN) return false;
      const Blocks blocks = walk_blocks(at + header.headerSize);
      const uint64_t end = blocks.end + (header.checksumFlag != 0 ? kChecksum : 0);
      if (end > file_.size()) throw corrupt(file_.size(), "a zstd frame is cut short");
      if (header.frameContentSize == 0) check_empty(at, end - at);
      add(at, header.frameContentSize, blocks.most);
      at = end;
    }
    return true;
  }

  struct Blocks {
    uint64_t end = 0;
    uint64_t most = 0;  // content
  };
  Blocks walk_blocks(uint64_t at) const {
    uint64_t most = 0;
    for (bool last = false; !last;) {
      if (file_.size() - at < kBlockHeader) throw corrupt(at, "a zstd frame is cut short");
      std::array<std::byte, 4> bytes{};
      file_.read_at(at, std::span(bytes).first(kBlockHeader));
      const auto header = load_le<uint32_t>(bytes.data());
      last = (header & 1) != 0;
      const bool is_raw = (header >> 1 & 3) == 0;
      const bool repeated_byte = (header >> 1 & 3) == 1;
      most += is_raw || repeated_byte ? header >> 3 : kLargestBlock;
      const uint64_t size = kBlockHeader + (repeated_byte ? 1 : header >> 3);
      if (size > file_.size() - at) throw corrupt(at, "a zstd frame is cut short");
      at += size;
    }
    return {at, most};
  }

  const StoredFile& file_;
  std::vector<ZstdFrame> frames_;
  uint64_t content_ = 0;
  uint64_t end_;  // end of the frames in the file
};

}  // namespace

void refuse_zstd(const Where& where, size_t result) {
  switch (ZSTD_getErrorCode(result)) {
    case ZSTD_error_frameParameter_windowTooLarge:
      throw UnsupportedError(where, "compressed with a window of more than 128 MiB")
          .with_hint("zstd -d --long=31 decompresses it");
    case ZSTD_error_memory_allocation:
      throw std::bad_alloc();
    case ZSTD_error_dictionary_wrong:
      throw UnsupportedError(where, "compressed with a dictionary");
    default:
      throw CorruptError(where,
                         std::string("cannot be decompressed: ") + ZSTD_getErrorName(result));
  }
}

std::optional<std::vector<ZstdFrame>> find_zstd_frames(const StoredFile& file) {
  return Frames(file).find();
}

}  // namespace dsckpt
