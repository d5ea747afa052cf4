// PieceTask: a task that only reads, for any process of a run.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/varint.h"
#include "dsckpt/run.h"

namespace dsckpt {

class RankInputs;

enum class PieceKind : uint8_t {
  extent_sums = 1,  // extent_sums.h
  read_back,        // read_back.h
  questions,        // of ckpt-inspect (inspect/ask.h)
};

// Pieces that are read one by one, and a question about each. Only their kind knows what is in the
// texts.
struct PieceTask {
  // The most bytes that one reads.
  static constexpr uint64_t kMostBytes = 512 << 20;

  PieceKind kind = PieceKind::extent_sums;
  std::string question = {};
  std::vector<std::string> pieces = {};

  static void fields(auto& codec, auto& self) {
    codec.one_of(self.kind, PieceKind::questions);
    codec(self.question, self.pieces);
  }
  std::string encode() const { return encoded(*this); }
  // Throws CorruptError.
  static PieceTask decode(std::string_view bytes) { return decoded<PieceTask>(bytes); }
};

// The answer for each of its pieces. Throws CorruptError for another number of them.
std::string encode_answers(std::span<const std::string> answers);
std::vector<std::string> decode_answers(std::string_view bytes, size_t pieces);

// Does a PieceTask, and returns the encoded answers.
using AnswerTask = std::function<std::string(std::string_view task, RankInputs& inputs,
                                             unsigned threads, Progress& progress)>;

}  // namespace dsckpt
