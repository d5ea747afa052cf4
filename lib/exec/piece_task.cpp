#include "exec/piece_task.h"

#include "base/varint.h"
#include "dsckpt/error.h"

namespace dsckpt {

std::string PieceTask::encode() const {
  VarintWriter writer;
  writer.number(static_cast<uint64_t>(kind));
  writer.text(question);
  writer.number(pieces.size());
  for (const std::string& piece : pieces) writer.text(piece);
  return writer.take();
}

PieceTask PieceTask::decode(std::string_view bytes) {
  VarintReader reader(bytes);
  PieceTask task{.kind = reader.choice(PieceKind::questions), .question = reader.text()};
  task.pieces.resize(reader.count());
  for (std::string& piece : task.pieces) piece = reader.text();
  return task;
}

std::string encode_answers(std::span<const std::string> answers) {
  VarintWriter writer;
  for (const std::string& answer : answers) writer.text(answer);
  return writer.take();
}

std::vector<std::string> decode_answers(std::string_view bytes, size_t pieces) {
  VarintReader reader(bytes);
  std::vector<std::string> answers(pieces);
  for (std::string& answer : answers) answer = reader.text();
  if (!reader.at_end()) throw CorruptError({}, "more answers than pieces");
  return answers;
}

}  // namespace dsckpt
