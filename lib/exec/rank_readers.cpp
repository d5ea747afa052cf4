#include "exec/rank_readers.h"

#include <string>
#include <utility>
#include <vector>

#include "exec/piece_work.h"
#include "exec/rank_work.h"
#include "exec/shares.h"
#include "exec/step_files.h"

namespace dsckpt {

void RankReaders::read(PieceWork& work, const Reading& reading) {
  std::vector<Shares::Piece> pieces;
  for (const PieceWork::Piece& piece : work.pieces()) {
    const uint64_t number = pieces.size();
    const int owner = piece.file ? inputs_.job().inputs[*piece.file].owner : -1;
    pieces.push_back({{number, number + 1}, piece.bytes, owner});
    reading.progress.bytes_total += piece.bytes;
  }
  if (pieces.empty()) return;
  const Folder folder = ranks_.make_folder();
  try {
    PlanWriter writer(folder);
    writer.add(
        Shares(pieces, ranks_.size(), PieceTask::kMostBytes),
        [&](const BatchRange& range) { return work.task(range).encode(); }, reading.progress);
    // With the inputs of all tasks.
    RankJob job = inputs_.job();
    job.sync_results = false;
    job.servers = ranks_.servers();
    writer.save({.by = {.program = ranks_.program()}, .job = std::move(job)});
    work_with_ranks(
        ranks_, folder,
        [&](std::string_view task, RankInputs& inputs, unsigned threads, Progress& progress) {
          return work.answer(task, inputs, threads, progress);
        },
        reading.threads, reading.progress);
    const StepPlan plan = load_plan(folder);
    for (size_t task = 0; task < plan.portions.size(); ++task) {
      const BatchRange& range = plan.portions[task].batches;
      const std::vector<std::string> answers =
          decode_answers(load_result(folder, plan, task).value().bytes, range.last - range.first);
      for (uint64_t piece = range.first; piece < range.last; ++piece) {
        VarintReader answer(answers[piece - range.first]);
        work.take(piece, answer);
      }
    }
  } catch (...) {
    ranks_.remove_folder(folder);
    throw;
  }
  ranks_.remove_folder(folder);
}

}  // namespace dsckpt
