#include "exec/output_sums.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <utility>

#include "base/bytes.h"
#include "base/kernels.h"
#include "dsckpt/error.h"
#include "exec/patches.h"
#include "exec/workers.h"
#include "io/page_buffer.h"

namespace dsckpt {
namespace {

// Of a digest.
constexpr uint64_t kPatch = sizeof(uint32_t);
// What is read at once.
constexpr uint64_t kRead = 1 << 20;

}  // namespace

// A file that was written, read past the page cache if that can be.
class OutputSums::WrittenFile {
 public:
  WrittenFile(const std::filesystem::path& path, std::string display)
      : display_(std::move(display)), fd_(::open(path.c_str(), O_RDONLY | O_CLOEXEC)) {
    if (fd_ < 0) throw IoError({.file = display_}, "cannot read back", errno);
    ::posix_fadvise(fd_, 0, 0, POSIX_FADV_DONTNEED);
    const int direct = ::open(path.c_str(), O_RDONLY | O_DIRECT | O_CLOEXEC);
    if (direct >= 0) ::close(std::exchange(fd_, direct));
  }
  ~WrittenFile() { ::close(fd_); }
  WrittenFile(const WrittenFile&) = delete;
  WrittenFile& operator=(const WrittenFile&) = delete;

  // Reads at a multiple of kRead into `buffer`, of kRead bytes and at a page's start. Returns how
  // many bytes there are.
  uint64_t read(uint64_t offset, std::byte* buffer) const {
    uint64_t got = 0;
    while (got < kRead) {
      const ssize_t now = ::pread(fd_, buffer + got, kRead - got, static_cast<off_t>(offset + got));
      if (now < 0 && errno == EINTR) continue;
      if (now < 0 && errno == EINVAL && leave_direct()) continue;
      if (now < 0) fail("cannot read back");
      if (now == 0) break;
      got += static_cast<uint64_t>(now);
      // The end of the file; a direct read could not go on from there.
      if (got % kBlock != 0) break;
    }
    return got;
  }

  const std::string& display() const { return display_; }

 private:
  static constexpr uint64_t kBlock = 512;

  // Opened, but cannot do it.
  bool leave_direct() const {
    const int flags = ::fcntl(fd_, F_GETFL);
    return flags >= 0 && (flags & O_DIRECT) != 0 && ::fcntl(fd_, F_SETFL, flags & ~O_DIRECT) == 0;
  }
  [[noreturn]] void fail(const char* what) const { throw IoError({.file = display_}, what, errno); }

  std::string display_;
  int fd_;
};

OutputSums::OutputSums(const CopyPlan& plan, Sink& target,
                       const std::function<bool(OutputId)>& is_rewritten)
    : plan_(plan), target_(target) {
  for (size_t i = 0; i < plan.outputs().size(); ++i) outputs_.emplace_back();
  for (const auto& [out, offsets] : patches_of(plan, is_rewritten)) {
    outputs_[out].patches = offsets;
  }
}

uint32_t OutputSums::sum_of(const Output& output, uint64_t offset,
                            std::span<const std::byte> bytes) {
  const uint64_t end = offset + bytes.size();
  constexpr std::array<std::byte, kPatch> kZeros{};
  uint32_t crc = 0;
  uint64_t at = offset;
  // The first patch that ends behind `offset`.
  auto patch = std::partition_point(output.patches.begin(), output.patches.end(),
                                    [&](uint64_t begin) { return begin + kPatch <= offset; });
  for (; patch != output.patches.end() && *patch < end; ++patch) {
    const uint64_t begin = std::max(*patch, at);
    const uint64_t stop = std::min(*patch + kPatch, end);
    crc = crc32(crc, bytes.subspan(at - offset, begin - at));
    crc = crc32(crc, std::span(kZeros).first(stop - begin));
    at = stop;
  }
  return crc32(crc, bytes.subspan(at - offset));
}

void OutputSums::write_at(OutputId out, uint64_t offset, std::span<const std::byte> bytes) {
  add(out, offset, bytes);
  target_.write_at(out, offset, bytes);
}

void OutputSums::add(OutputId out, uint64_t offset, std::span<const std::byte> bytes) {
  Output& output = outputs_[out];
  if (!output.patches.empty() && bytes.size() == kPatch) {
    const std::lock_guard lock(output.mutex);
    // Everything is written before anything is written again.
    if (output.written == plan_.outputs()[out].size) {
      output.patched[offset] = load_le<uint32_t>(bytes.data());
      return;
    }
  }
  while (!bytes.empty()) {
    const uint64_t room = kChunk - offset % kChunk;
    const auto part = bytes.first(std::min<uint64_t>(room, bytes.size()));
    const uint32_t crc = sum_of(output, offset, part);
    const std::lock_guard lock(output.mutex);
    output.written += part.size();
    const auto at = output.pieces.insert({offset, {part.size(), crc}}).first;
    const auto join = [&](auto left, auto right) {
      if (left->first + left->second.size != right->first || right->first % kChunk == 0) return;
      left->second.crc = crc32_combine(left->second.crc, right->second.crc, right->second.size);
      left->second.size += right->second.size;
      output.pieces.erase(right);
    };
    if (const auto next = std::next(at); next != output.pieces.end()) join(at, next);
    if (at != output.pieces.begin()) join(std::prev(at), at);
    offset += part.size();
    bytes = bytes.subspan(part.size());
  }
}

void OutputSums::finish(OutputId out) {
  target_.finish(out);
}

uint64_t OutputSums::bytes() const {
  uint64_t bytes = 0;
  for (const Output& output : outputs_) {
    for (const auto& [begin, piece] : output.pieces) bytes += piece.size;
  }
  return bytes;
}

void OutputSums::compare(const Output& output, uint64_t begin, const Piece& piece,
                         const WrittenFile& file, std::byte* buffer, RateLimit& limit) {
  uint32_t crc = 0;
  for (uint64_t at = begin, end = begin + piece.size; at < end;) {
    const uint64_t wanted = std::min(kRead, end - at);
    limit.take(wanted);
    const auto got = std::span(buffer, std::min(file.read(at, buffer), wanted));
    if (got.size() < wanted) {
      throw IoError({.file = file.display(), .offset = at + got.size()},
                    "is shorter than what was written", 0);
    }
    crc = crc32_combine(crc, sum_of(output, at, got), got.size());
    check_patches(output, at, got, file);
    at += got.size();
  }
  if (crc == piece.crc) return;
  throw IoError(
      {.file = file.display(), .offset = begin},
      "the disk does not give back the " + std::to_string(piece.size) + " bytes that were written",
      0);
}

void OutputSums::check_patches(const Output& output, uint64_t offset,
                               std::span<const std::byte> bytes, const WrittenFile& file) {
  auto patch = output.patched.lower_bound(offset < kPatch ? 0 : offset - kPatch + 1);
  for (; patch != output.patched.end() && patch->first < offset + bytes.size(); ++patch) {
    std::array<std::byte, kPatch> meant;
    store_le(meant.data(), patch->second);
    for (uint64_t i = 0; i < kPatch; ++i) {
      const uint64_t at = patch->first + i;
      if (at < offset || at >= offset + bytes.size() || bytes[at - offset] == meant[i]) continue;
      throw IoError({.file = file.display(), .offset = patch->first},
                    "the disk does not give back the checksum that was written", 0);
    }
  }
}

OutputSums::State OutputSums::state() const {
  State state;
  for (OutputId out = 0; out < outputs_.size(); ++out) {
    for (const auto& [offset, piece] : outputs_[out].pieces) {
      state.written.push_back({out, offset, piece.size, piece.crc});
    }
    for (const auto& [offset, value] : outputs_[out].patched) {
      state.patched.push_back({out, offset, value});
    }
  }
  return state;
}

void OutputSums::restore(const State& state) {
  for (const State::Written& piece : state.written) {
    if (piece.out >= outputs_.size()) throw CorruptError({}, "an output that the plan lacks");
    Output& output = outputs_[piece.out];
    output.pieces[piece.offset] = {piece.size, piece.crc};
    output.written += piece.size;
  }
  for (const State::Patched& patch : state.patched) {
    if (patch.out >= outputs_.size()) throw CorruptError({}, "an output that the plan lacks");
    outputs_[patch.out].patched[patch.offset] = patch.value;
  }
}

void OutputSums::check_last(uint64_t bytes,
                            const std::function<std::filesystem::path(OutputId)>& path,
                            const std::function<std::string(OutputId)>& display) const {
  const PageBuffer buffer(kRead);
  const std::atomic<bool> goes_on{false};
  RateLimit unlimited(0, goes_on);
  for (size_t out = outputs_.size(); out-- > 0 && bytes > 0;) {
    const Output& output = outputs_[out];
    if (output.pieces.empty()) continue;
    const auto id = static_cast<OutputId>(out);
    const WrittenFile file(path(id), display(id));
    for (auto piece = output.pieces.rbegin(); piece != output.pieces.rend() && bytes > 0; ++piece) {
      compare(output, piece->first, piece->second, file, buffer.bytes().data(), unlimited);
      bytes -= std::min(bytes, piece->second.size);
    }
  }
}

uint64_t OutputSums::read_back(const std::function<std::filesystem::path(OutputId)>& path,
                               const std::function<std::string(OutputId)>& display,
                               unsigned threads, RateLimit& limit, Progress& progress) const {
  struct Task {
    OutputId out;
    uint64_t begin;
    Piece piece;
  };
  std::vector<Task> tasks;
  for (OutputId out = 0; out < outputs_.size(); ++out) {
    for (const auto& [begin, piece] : outputs_[out].pieces) tasks.push_back({out, begin, piece});
  }
  std::atomic<size_t> next{0};
  std::atomic<bool> failed{false};
  std::atomic<uint64_t> read{0};
  run_workers(threads, [&] {
    try {
      const PageBuffer buffer(kRead);
      for (size_t i; (i = next++) < tasks.size() && !failed;) {
        if (progress.cancelled) throw InterruptedError();
        const auto& [out, begin, piece] = tasks[i];
        const WrittenFile file(path(out), display(out));
        compare(outputs_[out], begin, piece, file, buffer.bytes().data(), limit);
        read += piece.size;
        progress.bytes_done += piece.size;
      }
    } catch (...) {
      failed = true;
      throw;
    }
  });
  return read;
}

}  // namespace dsckpt
