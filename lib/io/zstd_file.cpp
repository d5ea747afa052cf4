#include "io/zstd_file.h"

#define ZSTD_STATIC_LINKING_ONLY  // ZSTD_getFrameHeader
#include <zstd.h>
#include <zstd_errors.h>

#include <algorithm>
#include <array>
#include <new>
#include <string>

#include "base/bytes.h"
#include "base/error.h"

namespace dsckpt {
namespace {

constexpr uint64_t kBlock = 1 << 20;
constexpr size_t kInput = 128 << 10;
constexpr int kLargestWindowLog = 27;
constexpr size_t kDecompressors = 4;
// The last blocks are kept: other threads are about to ask for them.
constexpr uint64_t kKept = 8;

constexpr uint32_t kSkippableMagic = 0x184D2A50;  // the last four bits are anything
constexpr uint32_t kSeekTableFrame = 0x184D2A5E;
constexpr uint32_t kSeekTableMagic = 0x8F92EAB1;
constexpr uint64_t kSeekTableFooter = 9;
constexpr const char* kOtherTable = "the seek table is not that of the frames before it";
constexpr uint64_t kSkippableHeader = 8;
constexpr uint64_t kBlockHeader = 3;
constexpr uint64_t kChecksum = 4;
constexpr uint64_t kLargestBlock = 128 << 10;  // of content
constexpr uint64_t kSmallestBlock = 4;         // stored, if it holds so much
constexpr uint64_t kMostOfNothing = 64;        // stored, of an empty frame

bool is_skippable(uint32_t magic) {
  return (magic & 0xFFFFFFF0) == kSkippableMagic;
}

[[noreturn]] void refuse(const Where& where, size_t result) {
  switch (ZSTD_getErrorCode(result)) {
    case ZSTD_error_frameParameter_windowTooLarge:
      throw UnsupportedError(where, "compressed with a window of more than 128 MiB")
          .with_hint("zstd -d --long=31 decompresses it");
    case ZSTD_error_dictionary_wrong:
      throw UnsupportedError(where, "compressed with a dictionary");
    default:
      throw CorruptError(where,
                         std::string("cannot be decompressed: ") + ZSTD_getErrorName(result));
  }
}

// Finds the frames of a file.
class Frames {
 public:
  explicit Frames(const StoredFile& file) : file_(file), end_(file.size()) {}

  // Frames that hold anything, and the ends of file and content. nullopt where a header does not
  // say how much its frame holds.
  std::optional<std::vector<ZstdFile::Frame>> find() {
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

  // A frame of nothing is never read, so what a table calls one has to be one.
  void check_empty(uint64_t stored, uint64_t size) const {
    if (size >= kSkippableHeader && is_skippable(read<uint32_t>(stored)) &&
        kSkippableHeader + read<uint32_t>(stored + 4) == size) {
      return;
    }
    std::vector<std::byte> frame(size <= kMostOfNothing ? size : 0);
    file_.read_at(stored, frame);
    if (frame.size() < size || ZSTD_decompress(nullptr, 0, frame.data(), size) != 0) {
      throw corrupt(stored, "the seek table calls a zstd frame empty that is not");
    }
  }

  // `most`: what the frame could become. Without that limit a header of a few bytes could make its
  // reader ask for any amount of memory.
  void add(uint64_t stored, uint64_t content, uint64_t most) {
    if (content > most) throw corrupt(stored, "a zstd frame of more than its blocks can hold");
    if (content > 0) frames_.push_back({stored, content_});
    content_ = checked_add(content_, content);
  }

  bool read_seek_table() {
    const uint64_t size = file_.size();
    if (size < kSkippableHeader + kSeekTableFooter || read<uint32_t>(size - 4) != kSeekTableMagic) {
      return false;
    }
    const uint64_t footer = size - kSeekTableFooter;
    const uint64_t count = read<uint32_t>(footer);
    const auto descriptor = read<uint8_t>(footer + 4);
    const uint64_t entry_size = (descriptor & 0x80) != 0 ? 12 : 8;
    const uint64_t table_size = count * entry_size;
    if ((descriptor & 0x7C) != 0 || table_size > footer - kSkippableHeader) {
      throw corrupt(footer, "not a seek table");
    }
    const uint64_t begin = footer - table_size - kSkippableHeader;
    if (read<uint32_t>(begin) != kSeekTableFrame ||
        read<uint32_t>(begin + 4) != table_size + kSeekTableFooter) {
      throw corrupt(begin, "not a seek table");
    }
    std::vector<std::byte> table(table_size);
    file_.read_at(begin + kSkippableHeader, table);
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

  // From header to header. False if a frame does not say how much it holds.
  bool walk() {
    for (uint64_t at = 0; at < file_.size();) {
      const uint64_t left = file_.size() - at;
      if (left < kSkippableHeader) throw corrupt(at, "cut short in the header of a zstd frame");
      if (is_skippable(read<uint32_t>(at))) {
        const uint64_t size = kSkippableHeader + read<uint32_t>(at + 4);
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
        refuse({.file = file_.display(), .offset = at}, result);
      }
      if (result != 0) throw corrupt(at, "not a zstd frame");
      if (header.frameContentSize == ZSTD_CONTENTSIZE_UNKNOWN) return false;
      const Blocks blocks = walk_blocks(at + header.headerSize);
      add(at, header.frameContentSize, blocks.most);
      at = blocks.end + (header.checksumFlag != 0 ? kChecksum : 0);
      if (at > file_.size()) throw corrupt(file_.size(), "a zstd frame is cut short");
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
  std::vector<ZstdFile::Frame> frames_;
  uint64_t content_ = 0;
  uint64_t end_;  // of the frames in the file
};

}  // namespace

// Somewhere on the way through the file.
class ZstdFile::Decompressor {
 public:
  // From `frame` on, one of `frames`; if there are none, they are found on the way.
  Decompressor(const StoredFile& file, const std::vector<Frame>& frames, const Frame& frame)
      : file_(file), frames_(frames), begin_(frame), next_input_(frame.stored), at_(frame.content) {
    if (context_ == nullptr) throw std::bad_alloc();
    ZSTD_DCtx_setParameter(context_.get(), ZSTD_d_windowLogMax, kLargestWindowLog);
  }

  uint64_t at() const { return at_; }
  uint64_t stored_at() const { return next_input_ - (input_.size - input_.pos); }
  const std::vector<Frame>& found() const { return found_; }

  // The content that follows, until `out` is full or the file ends. Returns how much that is.
  size_t read(std::span<std::byte> out) {
    ZSTD_outBuffer output{out.data(), out.size(), 0};
    while (output.pos < output.size) {
      if (input_.pos == input_.size && !refill()) {
        if (within_frame_) throw corrupt("a zstd frame is cut short");
        break;
      }
      const size_t before = output.pos;
      const size_t left = ZSTD_decompressStream(context_.get(), &output, &input_);
      at_ += output.pos - before;
      pass(left);
    }
    return output.pos;
  }

  // Reads on to the end of the frame, so that its checksum is checked. Nothing may be left of it.
  void finish_frame() {
    std::byte none{};
    ZSTD_outBuffer output{&none, 0, 0};
    while (within_frame_ && (input_.pos < input_.size || refill())) {
      const size_t in = input_.pos;
      pass(ZSTD_decompressStream(context_.get(), &output, &input_));
      if (input_.pos == in && within_frame_) break;
    }
    if (within_frame_) throw not_as_listed();
  }

 private:
  struct Free {
    void operator()(ZSTD_DCtx* context) const { ZSTD_freeDCtx(context); }
  };

  bool refill() {
    const uint64_t size = std::min<uint64_t>(kInput, file_.size() - next_input_);
    if (size == 0) return false;
    buffer_.resize(size);
    file_.read_at(next_input_, buffer_);
    next_input_ += size;
    input_ = {buffer_.data(), buffer_.size(), 0};
    return true;
  }

  // `left`: what zstd says of the frame that it is in.
  void pass(size_t left) {
    if (ZSTD_isError(left)) refuse({.file = file_.display(), .offset = stored_at()}, left);
    within_frame_ = left != 0;
    if (within_frame_) return;
    if (at_ != begin_.content) end_frame();
    begin_ = {stored_at(), at_};
  }

  // A seek table may say of a frame what it likes; the frame knows.
  void end_frame() {
    if (frames_.empty()) return found_.push_back(begin_);
    const auto frame =
        std::lower_bound(frames_.begin(), frames_.end() - 1, begin_.content,
                         [](const Frame& f, uint64_t content) { return f.content < content; });
    if (frame == frames_.end() - 1 || frame->content != begin_.content ||
        frame->stored != begin_.stored || frame[1].content != at_ ||
        frame[1].stored < stored_at()) {
      throw not_as_listed();
    }
    // Between two there may be frames of nothing, but not a part of one.
    const uint64_t between = frame[1].stored - stored_at();
    if (between > 0 && between < kSkippableHeader) throw not_as_listed();
  }

  CorruptError corrupt(const std::string& why) const {
    return {{.file = file_.display(), .offset = stored_at()}, why};
  }
  CorruptError not_as_listed() const {
    return corrupt("a zstd frame does not end where its header or the seek table says");
  }

  const StoredFile& file_;
  const std::vector<Frame>& frames_;
  std::vector<Frame> found_;
  Frame begin_;  // of the frame that it is in
  std::unique_ptr<ZSTD_DCtx, Free> context_{ZSTD_createDCtx()};
  std::vector<std::byte> buffer_;
  ZSTD_inBuffer input_{nullptr, 0, 0};
  uint64_t next_input_;
  uint64_t at_;  // of the content
  bool within_frame_ = false;
};

ZstdFile::ZstdFile(const StoredFile& file) : file_(file) {
  if (auto frames = Frames(file).find()) {
    frames_ = std::move(*frames);
    return;
  }
  Decompressor all(file, frames_, {});
  std::vector<std::byte> ignored(kBlock);
  while (all.read(ignored) == ignored.size()) {
  }
  frames_ = all.found();
  frames_.push_back({file.size(), all.at()});
}

ZstdFile::~ZstdFile() = default;

uint64_t ZstdFile::size() const {
  return frames_.back().content;
}

void ZstdFile::read_at(uint64_t offset, std::span<std::byte> out) {
  while (!out.empty()) {
    const uint64_t index = offset / kBlock;
    const SharedBlock block = cache_.get(index, [&] { return decode(index); });
    const auto from = block->bytes().subspan(offset - index * kBlock);
    const size_t size = std::min(from.size(), out.size());
    std::copy_n(from.begin(), size, out.begin());
    out = out.subspan(size);
    offset += size;
  }
}

SharedBlock ZstdFile::decode(uint64_t index) {
  const std::lock_guard lock(mutex_);
  for (const auto& [known, block] : passed_) {
    if (known == index) return block;
  }
  Decompressor& from = best_for(index * kBlock);
  try {
    return read_up_to(index, from);
  } catch (...) {
    decompressors_.pop_front();  // after an error it would go on anywhere
    throw;
  }
}

SharedBlock ZstdFile::read_up_to(uint64_t index, Decompressor& from) {
  std::vector<std::byte> skipped;
  while (true) {
    const uint64_t at = from.at();
    const uint64_t block = at / kBlock;
    const uint64_t end = std::min((block + 1) * kBlock, size());
    const auto read = [&](std::span<std::byte> target) {
      if (from.read(target) < target.size()) {
        throw CorruptError({.file = file_.display(), .offset = file_.size()},
                           "holds less than its headers say");
      }
      if (is_frame_end(end)) from.finish_frame();
    };
    // A frame may begin within a block; the rest of that one is not kept.
    if (at != block * kBlock || block + kKept <= index) {
      skipped.resize(end - at);
      read(skipped);
      continue;
    }
    auto kept = std::make_shared<Block>(end - at);
    read(kept->bytes());
    passed_.emplace_back(block, kept);
    if (passed_.size() > kKept) passed_.pop_front();
    if (block != index) continue;
    if (end == size()) decompressors_.pop_front();  // its memory: it can do no more
    return kept;
  }
}

bool ZstdFile::is_frame_end(uint64_t offset) const {
  return std::binary_search(frames_.begin(), frames_.end(), Frame{0, offset},
                            [](const Frame& a, const Frame& b) { return a.content < b.content; });
}

// The one in front of `offset` that has the shortest way, moved to the front of the list.
ZstdFile::Decompressor& ZstdFile::best_for(uint64_t offset) {
  // A block is made from its beginning on, so the frame is one that begins before it or there.
  const auto after = std::upper_bound(frames_.begin(), frames_.end() - 1, offset,
                                      [](uint64_t at, const Frame& f) { return at < f.content; });
  const Frame& frame = *(after - 1);
  auto best = decompressors_.end();
  for (auto at = decompressors_.begin(); at != decompressors_.end(); ++at) {
    if (at->at() <= offset && at->at() >= frame.content &&
        (best == decompressors_.end() || at->at() > best->at())) {
      best = at;
    }
  }
  if (best != decompressors_.end()) {
    decompressors_.splice(decompressors_.begin(), decompressors_, best);
  } else {
    if (decompressors_.size() == kDecompressors) decompressors_.pop_back();
    decompressors_.emplace_front(file_, frames_, frame);
  }
  return decompressors_.front();
}

uint64_t ZstdFile::stored_offset(uint64_t offset) const {
  return static_cast<uint64_t>(stored_bytes(0, offset));
}

double ZstdFile::stored_bytes(uint64_t offset, uint64_t size) const {
  double sum = 0;
  for (size_t i = 0; i + 1 < frames_.size(); ++i) {
    const uint64_t begin = std::max(offset, frames_[i].content);
    const uint64_t end = std::min(offset + size, frames_[i + 1].content);
    if (begin >= end) continue;
    sum += static_cast<double>(frames_[i + 1].stored - frames_[i].stored) *
           static_cast<double>(end - begin) /
           static_cast<double>(frames_[i + 1].content - frames_[i].content);
  }
  return sum;
}

}  // namespace dsckpt
