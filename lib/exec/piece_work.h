// PieceWork: work of a group that is a list of pieces, of which rank 0 does its own as the others
// do.
//
// A task is the numbers of its pieces and what is to be done with them; the answer is these numbers
// and what came of each.
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
  // `reading.group` is there. Both must outlive this.
  PieceWork(const RankJob& job, const Reading& reading);

  // Adds to progress.bytes_total. Throws what dispatch() throws.
  void run();

  std::string task(const BatchRange& batches) const final;
  void work_here(const Take& take, const OnDone& done, Progress& progress) final;
  Done absorb(std::string_view answer) final;

 protected:
  // What one rank reads at once is some seconds of a slow disk's.
  static constexpr uint64_t kPieceBytes = 16 << 20;

  // In the order in which they are read. `file`: the number of one that it reads, of the job's.
  void add_piece(uint64_t bytes, std::optional<FileId> file = {});
  // What a task says after the numbers of its pieces.
  virtual void write_task(VarintWriter& task, const BatchRange& pieces) const = 0;
  // As any rank does it, which has opened `inputs`.
  virtual std::string answer(std::string_view task, RankInputs& inputs, Progress& progress) = 0;
  // What an answer says after the numbers.
  virtual void take(const BatchRange& pieces, VarintReader& answer) = 0;

 private:
  const RankJob& job_;
  const Reading& reading_;
  RankInputs inputs_;
  std::vector<Shares::Piece> pieces_;
};

// The numbers of pieces, as tasks and answers have them.
BatchRange read_range(VarintReader& reader);
void write_range(VarintWriter& writer, const BatchRange& range);

}  // namespace dsckpt
