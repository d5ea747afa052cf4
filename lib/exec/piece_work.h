// PieceWork: a group's work on a list of pieces. Rank 0 does its pieces as the other ranks do.
//
// A task has the numbers of its pieces and the operation on them. The answer has these numbers and
// the result of each piece.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/varint.h"
#include "exec/dispatch.h"
#include "exec/rank_inputs.h"
#include "exec/rank_words.h"
#include "exec/reading.h"
#include "exec/shares.h"

namespace dsckpt {

class PieceWork : public SharedWork {
 public:
  // `reading.group` is set. Both must outlive this.
  PieceWork(const RankJob& job, const Reading& reading);

  // Adds to progress.bytes_total. Throws as dispatch().
  void run();

  std::string task(const BatchRange& batches) const final;
  void work_here(const Take& take, const OnDone& done, Progress& progress) final;
  Done absorb(std::string_view answer) final;

 protected:
  // The most bytes that a rank reads at once: some seconds of a slow disk.
  static constexpr uint64_t kPieceBytes = 16 << 20;

  // In the order of reading. `file` is the job's number of a file that the piece reads.
  void add_piece(uint64_t bytes, std::optional<FileId> file = {});
  // Writes the rest of a task, behind the numbers of its pieces.
  virtual void write_task(VarintWriter& task, const BatchRange& pieces) const = 0;
  // Does a task on any rank that has opened `inputs`.
  virtual std::string answer(std::string_view task, RankInputs& inputs, Progress& progress) = 0;
  // Reads the rest of an answer, behind the numbers.
  virtual void take(const BatchRange& pieces, VarintReader& answer) = 0;

 private:
  const RankJob& job_;
  const Reading& reading_;
  RankInputs inputs_;
  std::vector<Shares::Piece> pieces_;
};

// Reads the numbers of pieces in a task or an answer.
BatchRange read_range(VarintReader& reader);
void write_range(VarintWriter& writer, const BatchRange& range);

}  // namespace dsckpt
