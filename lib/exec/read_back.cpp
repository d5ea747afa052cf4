#include "exec/read_back.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <memory>
#include <optional>
#include <utility>

#include "base/bytes.h"
#include "base/kernels.h"
#include "base/turns.h"
#include "dsckpt/error.h"
#include "exec/patches.h"
#include "exec/piece_work.h"
#include "exec/rate_limit.h"
#include "exec/workers.h"
#include "io/far_files.h"
#include "io/page_buffer.h"
#include "io/stored_file.h"

namespace dsckpt {
namespace {

// What is read at once.
constexpr uint64_t kRead = 1 << 20;

// A file that was written, read past the page cache if that can be. A far one is read where it is.
class WrittenFile {
 public:
  explicit WrittenFile(const MeantFile& file) : display_(file.display) {
    if (std::optional<FarFile> far = far_file(file.path)) {
      far_ = std::make_unique<StoredFile>(file.path, file.display, std::move(far));
      return;
    }
    fd_ = ::open(file.path.c_str(), O_RDONLY | O_CLOEXEC);
    if (fd_ < 0) throw IoError({.file = display_}, "cannot read back", errno);
    ::posix_fadvise(fd_, 0, 0, POSIX_FADV_DONTNEED);
    const int direct = ::open(file.path.c_str(), O_RDONLY | O_DIRECT | O_CLOEXEC);
    if (direct >= 0) ::close(std::exchange(fd_, direct));
  }
  ~WrittenFile() {
    if (fd_ >= 0) ::close(fd_);
  }
  WrittenFile(const WrittenFile&) = delete;
  WrittenFile& operator=(const WrittenFile&) = delete;

  // Reads at a multiple of kRead into `buffer`, of kRead bytes and at a page's start. Returns how
  // many bytes there are.
  uint64_t read(uint64_t offset, std::byte* buffer) const {
    if (far_ != nullptr) {
      const uint64_t size = std::min(kRead, far_->size() - std::min(offset, far_->size()));
      far_->read_at(offset, {buffer, size});
      return size;
    }
    uint64_t got = 0;
    while (got < kRead) {
      const ssize_t now = ::pread(fd_, buffer + got, kRead - got, static_cast<off_t>(offset + got));
      if (now < 0 && errno == EINTR) continue;
      if (now < 0 && errno == EINVAL && leave_direct()) continue;
      if (now < 0) throw IoError({.file = display_}, "cannot read back", errno);
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

  const std::string& display_;
  std::unique_ptr<StoredFile> far_ = {};
  int fd_ = -1;
};

void check_patches(const MeantFile& meant, uint64_t offset, std::span<const std::byte> bytes) {
  auto patch = meant.patched.lower_bound(offset < kPatchBytes ? 0 : offset - kPatchBytes + 1);
  for (; patch != meant.patched.end() && patch->first < offset + bytes.size(); ++patch) {
    std::array<std::byte, kPatchBytes> value;
    store_le(value.data(), patch->second);
    for (uint64_t i = 0; i < kPatchBytes; ++i) {
      const uint64_t at = patch->first + i;
      if (at < offset || at >= offset + bytes.size() || bytes[at - offset] == value[i]) continue;
      throw IoError({.file = meant.display, .offset = patch->first},
                    std::string(is_far(meant.path) ? "the store" : "the disk") +
                        " does not give back the checksum that was written",
                    0);
    }
  }
}

// `buffer`: of kRead bytes, at a page's start.
void read_back_piece(const MeantFile& meant, const MeantFile::Piece& piece, std::byte* buffer,
                     RateLimit& limit) {
  const WrittenFile file(meant);
  uint32_t crc = 0;
  for (uint64_t at = piece.begin, end = piece.begin + piece.size; at < end;) {
    const uint64_t wanted = std::min(kRead, end - at);
    limit.take(wanted);
    const auto got = std::span(buffer, std::min(file.read(at, buffer), wanted));
    if (got.size() < wanted) {
      throw IoError({.file = meant.display, .offset = at + got.size()},
                    "is shorter than what was written", 0);
    }
    crc = crc32_combine(crc, crc32_unpatched(meant.patches, at, got), got.size());
    check_patches(meant, at, got);
    at += got.size();
  }
  if (crc == piece.crc) return;
  throw IoError({.file = meant.display, .offset = piece.begin},
                std::string(is_far(meant.path) ? "the store" : "the disk") +
                    " does not give back the " + std::to_string(piece.size) +
                    " bytes that were written",
                0);
}

// A piece of one of several files.
struct PieceOf {
  const MeantFile* file;
  const MeantFile::Piece* piece;
};

std::vector<PieceOf> pieces_of(std::span<const MeantFile> files) {
  std::vector<PieceOf> pieces;
  for (const MeantFile& file : files) {
    for (const MeantFile::Piece& piece : file.pieces) pieces.push_back({&file, &piece});
  }
  return pieces;
}

uint64_t read_back_here(std::span<const MeantFile> files, uint64_t limit_rate, unsigned threads,
                        Progress& progress) {
  const std::vector<PieceOf> pieces = pieces_of(files);
  RateLimit limit(limit_rate, progress.cancelled);
  std::atomic<uint64_t> read{0};
  Turns turns(pieces.size());
  run_workers(threads, [&] {
    const PageBuffer buffer(kRead);
    turns.take([&](size_t i) {
      if (progress.cancelled) throw InterruptedError();
      const auto& [file, piece] = pieces[i];
      read_back_piece(*file, *piece, buffer.bytes().data(), limit);
      read += piece->size;
      progress.bytes_done += piece->size;
    });
  });
  return read;
}

// The part of a file that some of its pieces are.
MeantFile part_of(const MeantFile& file, std::span<const MeantFile::Piece> pieces) {
  MeantFile part{file.path, file.display, {pieces.begin(), pieces.end()}};
  const uint64_t begin = pieces.front().begin;
  const uint64_t end = pieces.back().begin + pieces.back().size;
  const auto is_in = [&](uint64_t patch) { return patch + kPatchBytes > begin && patch < end; };
  std::copy_if(file.patches.begin(), file.patches.end(), std::back_inserter(part.patches), is_in);
  for (const auto& [offset, value] : file.patched) {
    if (is_in(offset)) part.patched.emplace(offset, value);
  }
  return part;
}

void write_meant(VarintWriter& writer, const MeantFile& file) {
  writer.text(file.path.native());
  writer.text(file.display);
  writer.number(file.pieces.size());
  for (const MeantFile::Piece& piece : file.pieces) {
    writer.number(piece.begin);
    writer.number(piece.size);
    writer.number(piece.crc);
  }
  writer.number(file.patches.size());
  for (const uint64_t patch : file.patches) writer.number(patch);
  writer.number(file.patched.size());
  for (const auto& [offset, value] : file.patched) {
    writer.number(offset);
    writer.number(value);
  }
}

MeantFile read_meant(VarintReader& reader) {
  MeantFile file{.path = reader.text()};
  file.display = reader.text();
  file.pieces.resize(reader.count());
  for (MeantFile::Piece& piece : file.pieces) {
    piece.begin = reader.number();
    piece.size = reader.number();
    piece.crc = static_cast<uint32_t>(reader.number());
  }
  file.patches.resize(reader.count());
  for (uint64_t& patch : file.patches) patch = reader.number();
  for (size_t left = reader.count(); left > 0; --left) {
    const uint64_t offset = reader.number();
    file.patched[offset] = static_cast<uint32_t>(reader.number());
  }
  return file;
}

class ReadBackWork : public PieceWork {
 public:
  ReadBackWork(const RankJob& job, std::span<const MeantFile> files, const Reading& reading)
      : PieceWork(job, reading),
        pieces_(pieces_of(files)),
        limit_rate_(job.options.limit_rate),
        threads_(reading.threads) {
    for (const PieceOf& each : pieces_) {
      add_piece(each.piece->size);
      bytes_ += each.piece->size;
    }
  }

  uint64_t bytes() const { return bytes_; }

 private:
  void write_task(VarintWriter& task, const BatchRange& pieces) const override {
    std::vector<MeantFile> files;
    for (uint64_t first = pieces.first, last; first < pieces.last; first = last) {
      const MeantFile& file = *pieces_[first].file;
      last = first + 1;
      while (last < pieces.last && pieces_[last].file == &file) ++last;
      files.push_back(part_of(file, std::span(pieces_[first].piece, last - first)));
    }
    task.number(files.size());
    for (const MeantFile& file : files) write_meant(task, file);
  }

  std::string answer(std::string_view task, RankInputs&, Progress& progress) override {
    return read_back_for_group(task, limit_rate_, threads_, progress);
  }

  void take(const BatchRange&, VarintReader&) override {}

  const std::vector<PieceOf> pieces_;
  const uint64_t limit_rate_;
  const unsigned threads_;
  uint64_t bytes_ = 0;
};

}  // namespace

uint64_t read_back(std::span<const MeantFile> files, uint64_t limit_rate, const Reading& reading) {
  if (reading.group == nullptr) {
    for (const PieceOf& each : pieces_of(files)) reading.progress.bytes_total += each.piece->size;
    return read_back_here(files, limit_rate, reading.threads, reading.progress);
  }
  const RankJob job{.tasks = Tasks::read_back,
                    .options = {.limit_rate = rate_of_rank(limit_rate, reading.group->size())}};
  ReadBackWork work(job, files, reading);
  work.run();
  return work.bytes();
}

std::string read_back_for_group(std::string_view task, uint64_t limit_rate, unsigned threads,
                                Progress& progress) {
  VarintReader reader(task);
  const BatchRange pieces = read_range(reader);
  std::vector<MeantFile> files(reader.count());
  for (MeantFile& file : files) file = read_meant(reader);
  read_back_here(files, limit_rate, threads, progress);
  VarintWriter answer;
  write_range(answer, pieces);
  return answer.take();
}

}  // namespace dsckpt
