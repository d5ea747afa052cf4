#include "exec/piece_work.h"

namespace dsckpt {
namespace {

// What is given out as a whole.
constexpr uint64_t kLongestTask = 512 << 20;

}  // namespace

BatchRange read_range(VarintReader& reader) {
  BatchRange range{.first = reader.number()};
  range.last = reader.number();
  return range;
}

void write_range(VarintWriter& writer, const BatchRange& range) {
  writer.number(range.first);
  writer.number(range.last);
}

PieceWork::PieceWork(const RankJob& job, const Reading& reading)
    : job_(job), reading_(reading), inputs_(job, reading.group) {}

void PieceWork::add_piece(uint64_t bytes, std::optional<FileId> file) {
  const uint64_t number = pieces_.size();
  pieces_.push_back({{number, number + 1}, bytes, file ? job_.inputs[*file].owner : -1});
}

void PieceWork::run() {
  for (const Shares::Piece& piece : pieces_) reading_.progress.bytes_total += piece.bytes;
  Shares shares(pieces_, reading_.group->size(), kLongestTask);
  dispatch(*reading_.group, job_, shares, *this, reading_.progress);
}

std::string PieceWork::task(const BatchRange& batches) const {
  VarintWriter writer;
  write_range(writer, batches);
  write_task(writer, batches);
  return writer.take();
}

void PieceWork::work_here(const Take& take, const OnDone& done, Progress& progress) {
  while (const std::optional<BatchRange> batches = take()) {
    done(answer(task(*batches), inputs_, progress));
  }
}

PieceWork::Done PieceWork::absorb(std::string_view answer) {
  VarintReader reader(answer);
  const BatchRange pieces = read_range(reader);
  take(pieces, reader);
  Done done;
  for (uint64_t i = pieces.first; i < pieces.last; ++i) done.bytes_done += pieces_.at(i).bytes;
  done.bytes_read = done.bytes_done;
  return done;
}

}  // namespace dsckpt
