#include "io/zstd_file.h"

#include <zstd.h>

#include <algorithm>
#include <new>
#include <string>

#include "base/bytes.h"
#include "dsckpt/error.h"

namespace dsckpt {
namespace {

constexpr uint64_t kContentBlock = 1 << 20;
constexpr size_t kInput = 128 << 10;
constexpr int kLargestWindowLog = 27;
constexpr size_t kDecompressors = 4;
// The last blocks of a file are kept outside the cache too. Other threads will ask for them soon,
// and the only other way to them is from the beginning of their frame. All files share
// kKeptTogether blocks, but each keeps at least one.
constexpr uint64_t kMostKept = 8;
constexpr uint64_t kKeptTogether = 64;

uint64_t kept_of_each() {
  return std::clamp<uint64_t>(kKeptTogether / std::max<size_t>(BlockCache::files(), 1), 1,
                              kMostKept);
}

}  // namespace

// Decompresses from some position on.
class ZstdFile::Decompressor {
 public:
  // Starts at `frame`, one of `frames`. If `frames` is empty, the frames are found on the way.
  Decompressor(const StoredFile& file, const std::vector<ZstdFrame>& frames, const ZstdFrame& frame)
      : file_(file), frames_(frames), begin_(frame), next_input_(frame.stored), at_(frame.content) {
    if (context_ == nullptr) throw std::bad_alloc();
    ZSTD_DCtx_setParameter(context_.get(), ZSTD_d_windowLogMax, kLargestWindowLog);
  }

  uint64_t at() const { return at_; }
  uint64_t stored_at() const { return next_input_ - (input_.size - input_.pos); }
  const std::vector<ZstdFrame>& found() const { return found_; }

  // Reads the next content until `out` is full or the file ends. Returns its size.
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

  // Reads to the end of the frame, so that its checksum is verified. The frame must have no more
  // content.
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

  // `left`: zstd's result, 0 at the end of a frame.
  void pass(size_t left) {
    if (ZSTD_isError(left)) refuse_zstd({.file = file_.display(), .offset = stored_at()}, left);
    within_frame_ = left != 0;
    if (within_frame_) return;
    if (at_ != begin_.content) end_frame();
    begin_ = {stored_at(), at_};
  }

  // A seek table may lie about a frame, so the frame itself is compared with it.
  void end_frame() {
    if (frames_.empty()) return found_.push_back(begin_);
    const auto frame =
        std::lower_bound(frames_.begin(), frames_.end() - 1, begin_.content,
                         [](const ZstdFrame& f, uint64_t content) { return f.content < content; });
    if (frame == frames_.end() - 1 || frame->content != begin_.content ||
        frame->stored != begin_.stored || frame[1].content != at_ ||
        frame[1].stored < stored_at()) {
      throw not_as_listed();
    }
    // Whole empty frames may lie between two frames, but no part of one.
    const uint64_t between = frame[1].stored - stored_at();
    if (between > 0 && between < kZstdSkippableHeader) throw not_as_listed();
  }

  CorruptError corrupt(const std::string& why) const {
    return {{.file = file_.display(), .offset = stored_at()}, why};
  }
  CorruptError not_as_listed() const {
    return corrupt("a zstd frame does not end where its header or the seek table says");
  }

  const StoredFile& file_;
  const std::vector<ZstdFrame>& frames_;
  std::vector<ZstdFrame> found_;
  ZstdFrame begin_;  // the current frame
  std::unique_ptr<ZSTD_DCtx, Free> context_{ZSTD_createDCtx()};
  std::vector<std::byte> buffer_;
  ZSTD_inBuffer input_{nullptr, 0, 0};
  uint64_t next_input_;
  uint64_t at_;  // position in the content
  bool within_frame_ = false;
};

ZstdFile::ZstdFile(const StoredFile& file) : file_(file) {
  if (auto frames = find_zstd_frames(file)) {
    frames_ = std::move(*frames);
    return;
  }
  Decompressor all(file, frames_, {});
  std::vector<std::byte> ignored(kContentBlock);
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
    const uint64_t index = offset / kContentBlock;
    const SharedBlock block = cache_.get(index, [&] { return decode(index); });
    const auto from = block->bytes().subspan(offset - index * kContentBlock);
    const size_t size = std::min(from.size(), out.size());
    std::copy_n(from.begin(), size, out.begin());
    out = out.subspan(size);
    offset += size;
  }
}

SharedBlock ZstdFile::decode(uint64_t index) {
  ++waiting_;
  const std::lock_guard lock(mutex_);
  --waiting_;
  for (const auto& [known, block] : passed_) {
    if (known == index) return block;
  }
  Decompressor& from = best_for(index * kContentBlock);
  try {
    return read_up_to(index, from);
  } catch (...) {
    decompressors_.pop_front();  // its position is unknown after an error
    throw;
  }
}

SharedBlock ZstdFile::read_up_to(uint64_t index, Decompressor& from) {
  std::vector<std::byte> skipped;
  const uint64_t most = kept_of_each();
  while (true) {
    const uint64_t at = from.at();
    const uint64_t block = at / kContentBlock;
    const uint64_t end = std::min((block + 1) * kContentBlock, size());
    const auto read = [&](std::span<std::byte> target) {
      if (from.read(target) < target.size()) {
        throw CorruptError({.file = file_.display(), .offset = file_.size()},
                           "holds less than its headers say");
      }
      if (is_frame_end(end)) from.finish_frame();
    };
    // A frame may begin within a block; the part of that block is not kept.
    if (at != block * kContentBlock || block + most <= index) {
      skipped.resize(end - at);
      read(skipped);
      continue;
    }
    auto kept = std::make_shared<CachedBlock>(end - at);
    read(kept->bytes());
    passed_.emplace_back(block, kept);
    while (passed_.size() > most) passed_.pop_front();
    if (block != index) continue;
    // The decompressor has reached the end, or only read the first block. A run that opens a
    // thousand files reads the first bytes of each before all are open.
    if (end == size() || index == 0) {
      decompressors_.pop_front();
      if (waiting_ == 0) passed_.clear();
    }
    return kept;
  }
}

bool ZstdFile::is_frame_end(uint64_t offset) const {
  return std::binary_search(
      frames_.begin(), frames_.end(), ZstdFrame{0, offset},
      [](const ZstdFrame& a, const ZstdFrame& b) { return a.content < b.content; });
}

// Returns the nearest decompressor at or before `offset`, and moves it to the front of the list.
ZstdFile::Decompressor& ZstdFile::best_for(uint64_t offset) {
  // A block is decompressed from its first byte on, so its frame begins at or before that byte.
  const auto after =
      std::upper_bound(frames_.begin(), frames_.end() - 1, offset,
                       [](uint64_t at, const ZstdFrame& f) { return at < f.content; });
  const ZstdFrame& frame = *(after - 1);
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
