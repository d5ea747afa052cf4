#include "exec/piece_work.h"

namespace dsckpt {

void PieceWork::run() {
  reading_.readers->read(*this, reading_);
}

PieceTask PieceWork::task(const BatchRange& pieces) {
  PieceTask task{.kind = kind_};
  VarintWriter question;
  write_question(question);
  task.question = question.take();
  for (uint64_t piece = pieces.first; piece < pieces.last; ++piece) {
    VarintWriter text;
    write_piece(text, piece);
    task.pieces.push_back(text.take());
  }
  return task;
}

FileId PieceWork::number_of(const InputFiles& files, FileId file) {
  const auto [known, is_new] = numbers_.emplace(std::pair(&files, file), FileId{0});
  if (is_new) known->second = reading_.readers->inputs().number_of(files[file]);
  return known->second;
}

}  // namespace dsckpt
