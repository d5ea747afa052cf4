#include "exec/packed_output.h"

#include <algorithm>
#include <map>
#include <utility>

#include "codec/frame.h"
#include "codec/xxh3.h"
#include "exec/frame_cuts.h"

namespace dsckpt {
namespace {

using Bytes = std::vector<std::byte>;

FrameEncoder& encoder_of_thread(int level) {
  thread_local std::unique_ptr<FrameEncoder> encoder;
  thread_local int its_level = 0;
  if (!encoder || its_level != level) encoder = std::make_unique<FrameEncoder>(level);
  its_level = level;
  return *encoder;
}

}  // namespace

// One packed file on its way.
class PackedOutput::File {
 public:
  File(PackedOutput& output, OutputId out)
      : output_(output), out_(out), cuts_(cut_into_frames(output.plan_, out, output.patches(out))) {
    index_.frames.resize(cuts_.size());
    if (out < output.sha256_.size()) index_.sha256 = output.sha256_[out];
    skip_patched();
  }

  void write_at(uint64_t offset, ByteSpan bytes) {
    auto cut = std::partition_point(cuts_.begin(), cuts_.end(),
                                    [&](const FrameCut& c) { return c.end() <= offset; });
    for (; !bytes.empty(); ++cut) {
      const ByteSpan part = bytes.first(std::min<uint64_t>(bytes.size(), cut->end() - offset));
      const auto number = static_cast<size_t>(cut - cuts_.begin());
      if (part.size() == cut->size && !cut->patched) {
        store(number, part);
      } else if (const auto whole = collect(number, offset - cut->begin, part)) {
        store(number, *whole);
      }
      offset += part.size();
      bytes = bytes.subspan(part.size());
    }
  }

  void finish() {
    for (auto& [number, frame] : parts_) place(number, encode(number, frame.bytes));
    put(0, as_byte_span(PackedIndex::header()));
    put(end_, as_byte_span(index_.trailer(end_)));
    output_.target_.finish(out_);
  }

 private:
  struct Parts {
    Bytes bytes;
    uint64_t filled = 0;
  };

  // Keeps a part of a frame. Returns the frame when that was the last one, but for those that are
  // patched: these wait for finish().
  std::optional<Bytes> collect(size_t number, uint64_t at, ByteSpan part) {
    const std::lock_guard lock(mutex_);
    Parts& parts = parts_[number];
    parts.bytes.resize(cuts_[number].size);
    std::copy(part.begin(), part.end(), parts.bytes.begin() + static_cast<ptrdiff_t>(at));
    parts.filled += part.size();
    if (cuts_[number].patched || parts.filled < parts.bytes.size()) return std::nullopt;
    std::optional<Bytes> whole = std::move(parts.bytes);
    parts_.erase(number);
    return whole;
  }

  ByteSpan encode(size_t number, ByteSpan content) {
    const ByteSpan frame = encoder_of_thread(output_.level_).encode(content, cuts_[number].layout);
    PackedFrame& entry = index_.frames[number];
    entry.content_size = static_cast<uint32_t>(content.size());
    entry.stored_size = static_cast<uint32_t>(frame.size());
    entry.content_hash = xxh3(content);
    entry.stored_hash = xxh3(frame);
    return frame;
  }

  void store(size_t number, ByteSpan content) {
    const ByteSpan frame = encode(number, content);
    // Frames that follow each other are written in one go where they have waited for this one.
    Bytes ready;
    uint64_t at = 0;
    {
      const std::lock_guard lock(mutex_);
      if (number != next_) {
        waiting_.emplace(number, Bytes(frame.begin(), frame.end()));
        return;
      }
      at = end_;
      advance(frame.size());
      for (auto first = waiting_.begin(); first != waiting_.end() && first->first == next_;
           first = waiting_.erase(first)) {
        ready.insert(ready.end(), first->second.begin(), first->second.end());
        advance(first->second.size());
      }
    }
    put(at, frame);
    if (!ready.empty()) put(at + frame.size(), ready);
  }

  // Only while nobody else writes.
  void place(size_t number, ByteSpan frame) {
    index_.frames[number].offset = end_;
    put(end_, frame);
    end_ += frame.size();
  }

  // Frame next_ lies at end_. With the mutex held.
  void advance(uint64_t size) {
    index_.frames[next_++].offset = end_;
    end_ += size;
    skip_patched();
  }

  void skip_patched() {
    while (next_ < cuts_.size() && cuts_[next_].patched) ++next_;
  }

  void put(uint64_t offset, ByteSpan bytes) {
    output_.target_.write_at(out_, offset, bytes);
    output_.bytes_stored_ += bytes.size();
  }

  PackedOutput& output_;
  const OutputId out_;
  const std::vector<FrameCut> cuts_;
  std::mutex mutex_;
  PackedIndex index_;  // a frame's entry is its encoder's, but for the offset
  uint64_t end_ = PackedIndex::kHeaderSize;
  size_t next_ = 0;                  // the frame that is stored next
  std::map<size_t, Bytes> waiting_;  // encoded frames behind it
  std::map<size_t, Parts> parts_;    // of frames that have not been given whole
};

PackedOutput::PackedOutput(const CopyPlan& plan, Sink& target, int level,
                           std::vector<std::optional<Sha256Digest>> sha256)
    : plan_(plan),
      target_(target),
      level_(level),
      sha256_(std::move(sha256)),
      patches_(patches_of(plan)) {}
PackedOutput::~PackedOutput() = default;

std::span<const uint64_t> PackedOutput::patches(OutputId out) const {
  const auto found = patches_.find(out);
  return found == patches_.end() ? std::span<const uint64_t>() : found->second;
}

PackedOutput::File& PackedOutput::file(OutputId out) {
  const std::lock_guard lock(mutex_);
  std::unique_ptr<File>& file = files_[out];
  if (!file) file = std::make_unique<File>(*this, out);
  return *file;
}

void PackedOutput::write_at(OutputId out, uint64_t offset, std::span<const std::byte> bytes) {
  if (is_packable(plan_.outputs()[out].path)) return file(out).write_at(offset, bytes);
  target_.write_at(out, offset, bytes);
  bytes_stored_ += bytes.size();
}

void PackedOutput::finish(OutputId out) {
  if (!is_packable(plan_.outputs()[out].path)) return target_.finish(out);
  file(out).finish();
  const std::lock_guard lock(mutex_);
  files_.erase(out);
}

}  // namespace dsckpt
