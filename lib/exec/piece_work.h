// PieceWork: a pass over files, as a list of pieces that are only read and do not need each other.
// The processes of Readers do it together.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/varint.h"
#include "exec/job_inputs.h"
#include "exec/piece_task.h"
#include "exec/rank_inputs.h"
#include "exec/reading.h"
#include "exec/units.h"

namespace dsckpt {

class PieceWork {
 public:
  // `reading.readers` is set. It must outlive this.
  PieceWork(PieceKind kind, const Reading& reading) : kind_(kind), reading_(reading) {}
  virtual ~PieceWork() = default;

  // Adds to progress.bytes_total. Throws as work_with_ranks().
  void run();

  // For Readers:
  struct Piece {
    uint64_t bytes = 0;
    std::optional<FileId> file = {};  // one that it reads, as the job numbers it
  };
  const std::vector<Piece>& pieces() const { return pieces_; }
  PieceTask task(const BatchRange& pieces);
  // Does a PieceTask of this work in any process that has opened `inputs`.
  virtual std::string answer(std::string_view task, RankInputs& inputs, unsigned threads,
                             Progress& progress) = 0;
  virtual void take(uint64_t piece, VarintReader& answer) = 0;

 protected:
  // The most bytes that a process reads at once: some seconds of a slow disk.
  static constexpr uint64_t kPieceBytes = 16 << 20;

  // In the order of reading.
  void add_piece(uint64_t bytes, std::optional<FileId> file = {}) {
    pieces_.push_back({bytes, file});
  }
  // The job's number of a file.
  FileId number_of(const InputFiles& files, FileId file);
  virtual void write_question(VarintWriter& question) const = 0;
  virtual void write_piece(VarintWriter& text, uint64_t piece) = 0;

 private:
  const PieceKind kind_;
  const Reading& reading_;
  std::vector<Piece> pieces_ = {};
  std::map<std::pair<const InputFiles*, FileId>, FileId> numbers_ = {};
};

}  // namespace dsckpt
