#include "exec/answering.h"

#include <utility>

#include "base/varint.h"
#include "exec/extent_sums.h"
#include "exec/read_back.h"

namespace dsckpt {

AnswerTask answering(AnswerTask questions) {
  return [questions = std::move(questions)](std::string_view task, RankInputs& inputs,
                                            unsigned threads, Progress& progress) {
    switch (VarintReader(task).choice(PieceKind::questions)) {
      case PieceKind::extent_sums:
        return sum_for_rank(task, inputs, threads, progress);
      case PieceKind::read_back:
        return read_back_for_rank(task, threads, progress);
      default:
        return questions(task, inputs, threads, progress);
    }
  };
}

}  // namespace dsckpt
