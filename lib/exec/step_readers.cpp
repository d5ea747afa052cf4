#include "exec/step_readers.h"

#include <algorithm>
#include <utility>

#include "base/bytes.h"
#include "base/sha256.h"
#include "base/text.h"
#include "base/varint.h"
#include "dsckpt/error.h"
#include "exec/commit.h"
#include "exec/journal.h"
#include "exec/piece_work.h"
#include "exec/shares.h"
#include "exec/staging_owner.h"

namespace dsckpt {
namespace fs = std::filesystem;
namespace {

std::string key_of(const PieceTask& task, const std::string& piece) {
  return PieceTask{task.kind, task.question, {piece}}.encode();
}

JobIdentity identity_of(const RankJob& job, const Sha256Digest& passes, const PlannedBy& by) {
  JobIdentity identity{.plan = hex_digits(passes)};
  for (const RankJob::Input& input : job.inputs) {
    identity.inputs.push_back({printable(input.path), input.stored_size, input.modified});
  }
  for (const std::string& word : by.words) {
    identity.options += (identity.options.empty() ? "" : " ") + printable(shell_word(word));
  }
  return identity;
}

}  // namespace

void PassPlanner::read(PieceWork& work, const Reading& reading) {
  if (reading.progress.cancelled) throw InterruptedError();
  Pass pass{.task = work.task({0, work.pieces().size()}), .bytes = {}};
  for (const PieceWork::Piece& piece : work.pieces()) pass.bytes.push_back(piece.bytes);
  passes_.push_back(std::move(pass));
}

void PassPlanner::cut(uint64_t portions, PlanWriter& writer) const {
  uint64_t total = 0;
  for (const Pass& pass : passes_) {
    for (const uint64_t bytes : pass.bytes) total += bytes;
  }
  const uint64_t longest = Shares::step_portion_bytes(total, portions);
  uint64_t number = 0;  // of all pieces
  for (const Pass& pass : passes_) {
    PieceTask task{.kind = pass.task.kind, .question = pass.task.question};
    uint64_t bytes = 0;
    for (size_t i = 0; i < pass.bytes.size(); ++i) {
      task.pieces.push_back(pass.task.pieces[i]);
      bytes += pass.bytes[i];
      const bool is_last = i + 1 == pass.bytes.size();
      if (!is_last && bytes + pass.bytes[i + 1] / 2 < longest) continue;
      writer.add(
          {.batches = {number, number + task.pieces.size()}, .bytes = std::exchange(bytes, 0)},
          task.encode());
      number += task.pieces.size();
      task.pieces.clear();
    }
  }
}

Planned PassPlanner::save(const fs::path& path, const PlannedBy& by, uint64_t portions) {
  StepPlan plan{.by = by, .job = inputs_.job()};
  Sha256 hash;
  for (const Pass& pass : passes_) hash.update(as_byte_span(pass.task.encode()));
  const JobIdentity identity = identity_of(plan.job, hash.digest(), by);
  const Steps before = find_steps(path);
  if (before.folder && has_plan(*before.folder)) {
    return planned_before(*before.folder, identity, path);
  }
  if (before.folder || before.is_output_there) {
    throw UsageError(path.string() + ": holds something other than a plan")
        .with_hint("--emit-plan DIR makes a new folder, and needs its name");
  }
  std::vector<fs::path> made;
  const Folder place = Folder::make(before.output, made);
  for (const fs::path& folder : made) plan.made_folders.push_back(folder.string());
  const Folder folder =
      before.left_over
          ? *before.left_over
          : make_resumable_folder(place, resumable_folder(before.output, false).filename());
  StagingOwner owner(folder);
  PlanWriter writer(folder);
  cut(portions, writer);
  const Planned planned = writer.save(std::move(plan));
  // Last: what has no job is a left-over.
  save_job(folder, identity);
  owner.unsign();
  return planned;
}

PassAnswers::PassAnswers(Folder folder)
    : folder_(std::move(folder)),
      plan_(load_plan(folder_)),
      inputs_(plan_.job),
      opened_(inputs_.job(), nullptr) {
  for (size_t portion = 0; portion < plan_.portions.size(); ++portion) {
    const PieceTask task = PieceTask::decode(load_task(folder_, plan_, portion));
    for (size_t i = 0; i < task.pieces.size(); ++i) {
      places_.emplace(key_of(task, task.pieces[i]), Place{portion, i});
    }
    pieces_.push_back(task.pieces.size());
    // A damaged one is not a finding of the pass that takes it.
    static_cast<void>(load_result(folder_, plan_, portion));
  }
}

std::optional<std::string> PassAnswers::answer_to(const PieceTask& task) {
  const auto found = places_.find(key_of(task, task.pieces.front()));
  if (found == places_.end()) return std::nullopt;
  const Place& place = found->second;
  if (loaded_ != place.portion) {
    const std::optional<StepResult> result = load_result(folder_, plan_, place.portion);
    loaded_ = place.portion;
    answers_.clear();
    if (result && result->bytes != kNoAnswers) {
      answers_ = decode_answers(result->bytes, pieces_[place.portion]);
    }
  }
  return answers_.empty() ? std::nullopt : std::optional(answers_[place.number]);
}

void PassAnswers::read(PieceWork& work, const Reading& reading) {
  Progress& progress = reading.progress;
  for (const PieceWork::Piece& piece : work.pieces()) progress.bytes_total += piece.bytes;
  BatchRange unanswered;
  uint64_t bytes = 0;
  const auto read_unanswered = [&] {
    if (unanswered.first == unanswered.last) return;
    const std::vector<std::string> answers = decode_answers(
        work.answer(work.task(unanswered).encode(), opened_, reading.threads, progress),
        unanswered.last - unanswered.first);
    for (const std::string& text : answers) {
      VarintReader answer(text);
      work.take(unanswered.first++, answer);
    }
    bytes = 0;
  };
  for (uint64_t piece = 0; piece < work.pieces().size(); ++piece) {
    if (progress.cancelled) throw InterruptedError();
    const std::optional<std::string> text = answer_to(work.task({piece, piece + 1}));
    if (!text) {
      if (unanswered.first == unanswered.last) unanswered.first = piece;
      unanswered.last = piece + 1;
      bytes += work.pieces()[piece].bytes;
      if (bytes >= PieceTask::kMostBytes) read_unanswered();
      continue;
    }
    read_unanswered();
    VarintReader answer(*text);
    work.take(piece, answer);
    progress.bytes_done += work.pieces()[piece].bytes;
  }
  read_unanswered();
}

}  // namespace dsckpt
