#include "exec/read_back.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <memory>
#include <optional>
#include <utility>

#include "base/kernels.h"
#include "base/rate_limit.h"
#include "base/text.h"
#include "base/turns.h"
#include "dsckpt/error.h"
#include "exec/piece_work.h"
#include "exec/staged_files.h"
#include "exec/workers.h"
#include "io/far_files.h"
#include "io/page_buffer.h"
#include "io/stored_file.h"

namespace dsckpt {
namespace {

// The bytes of one read.
constexpr uint64_t kRead = 1 << 20;

// A file that was written, read past the page cache if that can be. A far one is read where it is.
class WrittenFile {
 public:
  explicit WrittenFile(const MeantFile& file) : display_(file.display) {
    if (std::optional<FarFile> far = far_file(file.path)) {
      far_ = std::make_unique<StoredFile>(file.path, file.display, std::move(far));
      return;
    }
    fd_ = open(file, 0);
    if (fd_ < 0) throw IoError({.file = display_}, "cannot read back", errno);
    ::posix_fadvise(fd_, 0, 0, POSIX_FADV_DONTNEED);
    const int direct = open(file, O_DIRECT);
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

  static int open(const MeantFile& file, int flags) {
    if (file.folder) return file.folder->open_to_read(file.path, flags);
    return ::open(file.path.c_str(), O_RDONLY | O_CLOEXEC | flags);
  }

  // Opened, but cannot do it.
  bool leave_direct() const {
    const int flags = ::fcntl(fd_, F_GETFL);
    return flags >= 0 && (flags & O_DIRECT) != 0 && ::fcntl(fd_, F_SETFL, flags & ~O_DIRECT) == 0;
  }

  const std::string& display_;
  std::unique_ptr<StoredFile> far_ = {};
  int fd_ = -1;
};

// Pieces of a file that lie in one chunk: what is read together.
struct Stretch {
  const MeantFile* file;
  std::span<const MeantFile::Piece> pieces;

  uint64_t bytes() const {
    uint64_t sum = 0;
    for (const MeantFile::Piece& piece : pieces) sum += piece.size;
    return sum;
  }
};

std::vector<Stretch> stretches_of(std::span<const MeantFile> files) {
  constexpr uint64_t kChunk = OutputSums::kChunk;
  std::vector<Stretch> stretches;
  for (const MeantFile& file : files) {
    const std::span<const MeantFile::Piece> all = file.pieces;
    for (size_t first = 0, last; first < all.size(); first = last) {
      last = first + 1;
      while (last < all.size() && all[last].begin / kChunk == all[first].begin / kChunk) ++last;
      stretches.push_back({&file, all.subspan(first, last - first)});
    }
  }
  return stretches;
}

// `buffer`: of kRead bytes, at a page's start.
void read_back_stretch(const Stretch& stretch, std::byte* buffer, RateLimit& limit) {
  const MeantFile& meant = *stretch.file;
  const WrittenFile file(meant);
  const uint64_t end = stretch.pieces.back().end();
  auto piece = stretch.pieces.begin();
  uint32_t crc = 0;  // of that piece, as far as it was read
  for (uint64_t at = piece->begin / kRead * kRead; at < end; at += kRead) {
    limit.take(std::min(kRead, end - at));
    const std::span<const std::byte> got(buffer, file.read(at, buffer));
    while (piece != stretch.pieces.end() && piece->begin < at + kRead) {
      const uint64_t first = std::max(piece->begin, at);
      const uint64_t last = std::min(piece->end(), at + kRead);
      if (last > at + got.size()) {
        throw IoError({.file = meant.display, .offset = at + got.size()},
                      "is shorter than the written bytes", 0);
      }
      crc = crc32(crc, got.subspan(first - at, last - first));
      if (last < piece->end()) break;
      if (crc != piece->crc) {
        throw IoError({.file = meant.display, .offset = piece->begin},
                      std::string(is_far(meant.path) ? "the store" : "the disk") +
                          " does not give back the " + counted(piece->size, "byte") +
                          " that were written",
                      0);
      }
      crc = 0;
      ++piece;
    }
  }
}

uint64_t read_back_here(std::span<const MeantFile> files, uint64_t limit_rate, unsigned threads,
                        Progress& progress) {
  const std::vector<Stretch> stretches = stretches_of(files);
  RateLimit limit(limit_rate, progress.cancelled);
  std::atomic<uint64_t> read{0};
  Turns turns(stretches.size());
  run_workers(threads, [&] {
    const PageBuffer buffer(kRead);
    turns.take([&](size_t i) {
      if (progress.cancelled) throw InterruptedError();
      read_back_stretch(stretches[i], buffer.bytes().data(), limit);
      const uint64_t bytes = stretches[i].bytes();
      read += bytes;
      progress.bytes_done += bytes;
    });
  });
  return read;
}

void write_meant(VarintWriter& writer, const Stretch& stretch) {
  const std::optional<Folder>& folder = stretch.file->folder;
  writer(folder ? std::filesystem::absolute(folder->path()) : std::filesystem::path(),
         stretch.file->path, stretch.file->display);
  writer.rows(stretch.pieces, &MeantFile::Piece::begin, &MeantFile::Piece::size,
              &MeantFile::Piece::crc);
}

MeantFile read_meant(VarintReader& reader) {
  MeantFile file;
  if (const std::filesystem::path folder = reader.text(); !folder.empty()) {
    file.folder = StagingPlace{.path = folder}.open();
  }
  reader(file.path, file.display);
  reader.rows(file.pieces, &MeantFile::Piece::begin, &MeantFile::Piece::size,
              &MeantFile::Piece::crc);
  if (file.pieces.empty()) throw CorruptError({}, "a file without bytes to read");
  return file;
}

class ReadBackWork : public PieceWork {
 public:
  ReadBackWork(std::span<const MeantFile> files, uint64_t limit_rate, const Reading& reading)
      : PieceWork(PieceKind::read_back, reading),
        stretches_(stretches_of(files)),
        limit_rate_(rate_of_rank(limit_rate, reading.readers->size())) {
    for (const Stretch& stretch : stretches_) {
      add_piece(stretch.bytes());
      bytes_ += stretch.bytes();
    }
  }

  uint64_t bytes() const { return bytes_; }

 private:
  void write_question(VarintWriter& question) const override { question.number(limit_rate_); }

  void write_piece(VarintWriter& text, uint64_t piece) override {
    write_meant(text, stretches_[piece]);
  }

  std::string answer(std::string_view task, RankInputs&, unsigned threads,
                     Progress& progress) override {
    return read_back_for_rank(task, threads, progress);
  }

  void take(uint64_t, VarintReader&) override {}

  const std::vector<Stretch> stretches_;
  const uint64_t limit_rate_;
  uint64_t bytes_ = 0;
};

}  // namespace

uint64_t read_back(std::span<const MeantFile> files, uint64_t limit_rate, const Reading& reading) {
  if (reading.readers == nullptr) {
    for (const Stretch& each : stretches_of(files)) reading.progress.bytes_total += each.bytes();
    return read_back_here(files, limit_rate, reading.threads, reading.progress);
  }
  ReadBackWork work(files, limit_rate, reading);
  work.run();
  return work.bytes();
}

std::string read_back_for_rank(std::string_view bytes, unsigned threads, Progress& progress) {
  const PieceTask task = PieceTask::decode(bytes);
  std::vector<MeantFile> files;
  for (const std::string& piece : task.pieces) {
    VarintReader reader(piece);
    files.push_back(read_meant(reader));
  }
  read_back_here(files, VarintReader(task.question).number(), threads, progress);
  return encode_answers(std::vector<std::string>(files.size()));
}

}  // namespace dsckpt
