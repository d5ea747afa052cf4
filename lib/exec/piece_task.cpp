#include "exec/piece_task.h"

#include "dsckpt/error.h"

namespace dsckpt {

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
