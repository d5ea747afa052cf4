#include "job/writing.h"

#include <algorithm>
#include <chrono>
#include <map>
#include <utility>

#include "base/text.h"
#include "exec/executor.h"
#include "exec/portion.h"
#include "exec/rank_work.h"
#include "io/file_system.h"

namespace dsckpt {
namespace fs = std::filesystem;
namespace {

// Counts the bytes that the plan reads from files without a checksum. Those are not packed, and
// have no record in `records`.
uint64_t bytes_without_checksum(const Job::Impl& job, const std::vector<InputRecord>& records) {
  std::vector<bool> has_checksums(job.inputs->size());
  for (FileId file = 0; file < job.inputs->size(); ++file) {
    has_checksums[file] = (*job.inputs)[file].encoding() == Encoding::packed;
  }
  for (const InputRecord& record : records) has_checksums[record.extent.file] = true;
  uint64_t bytes = 0;
  for (const CopyItem& item : job.plan.items()) {
    job.plan.for_each_source(item, [&](const Rows& source, uint64_t rows) {
      if (!has_checksums[source.file]) bytes += source.row_bytes * rows;
    });
  }
  return bytes;
}

// Outputs must not mix two states of an input.
void check_unchanged(const InputFiles& inputs) {
  for (FileId file = 0; file < inputs.size(); ++file) inputs[file].check_unchanged();
}

}  // namespace

std::vector<InputRecord> records_to_check(const Job::Impl& job, bool all, Frames frames) {
  std::vector<FileId> files;
  OpenArchives open(job.inputs->size());
  if (job.checkpoint) {
    for (const CheckpointFile& file : job.checkpoint->archives()) {
      files.push_back(file.archive->file());
      open[files.back()] = file.archive;
    }
  }
  std::vector<InputRecord> records =
      records_read(job.plan, *job.inputs, job.as_they_are, frames, open);
  if (!all || !job.checkpoint) return records;
  for (const DataFile& file : job.checkpoint->files().data) files.push_back(file.id);
  for (const InputRecord& record : records) files.push_back(record.extent.file);
  return all_records(*job.inputs, std::move(files), frames, open);
}

Writing::Writing(const Job::Impl& job, const RunOptions& options, const IoChoice& io,
                 Output& output, const OtherRanks* others)
    : job_(job), options_(options), io_(io), output_(output), others_(others) {
  if (others != nullptr) readers_.emplace(others->meeting);
  if (options.verify_output || options.resume) {
    sums_.emplace(job.plan, output);
  }
  if (options.resume) load_before();
}

RunStats Writing::operator()(Progress& progress) {
  const auto start = std::chrono::steady_clock::now();
  if (before_) take_over();
  hashes_ = hashes(progress);
  set_sink();
  std::vector<RankStats> ranks;
  if (others_ != nullptr) ranks = work_with_others(progress);
  std::vector<InputRecord> records = records_to_check(job_, options_.verify);
  const uint64_t without_checksum = bytes_without_checksum(job_, records);
  ExecOptions execution{.threads = io_.threads,
                        .unit_bytes = before_ ? before_->run.unit_bytes : io_.unit_bytes,
                        .records = std::move(records),
                        .check_all_records = options_.verify,
                        .limit_rate = options_.limit_rate};
  if (before_) execution.from = &before_->run;
  if (options_.resume && output_.keeps_what_is_written()) {
    execution.save = [&](const RunState& reached) { save(reached); };
    execution.save_every = options_.save_every;
    execution.save_between_outputs = packed_.has_value();
  }
  RunStats stats = execute(job_.plan, *job_.inputs, *sink_, progress, execution);
  stats.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  stats.ranks = std::move(ranks);
  stats.bytes_without_checksum = without_checksum;
  stats.has_checksums = without_checksum == 0 || without_checksum < job_.plan.bytes_read();
  stats.bytes_kept = bytes_kept_;
  if (packed_) stats.bytes_stored = bytes_stored();
  check_unchanged(*job_.inputs);
  return stats;
}

Planned Writing::plan(const PlannedBy& by, uint64_t wanted, Progress& progress) {
  if (before_) take_over();
  hashes_ = hashes(progress);
  set_sink();
  return plan_rest(by, {.portion_bytes = ~uint64_t{0}}, wanted, progress);
}

CommitHelp Writing::help(RunStats& stats, Progress& progress) {
  CommitHelp help;
  if (options_.verify_output) {
    help.read_back = [&](OutputId first, OutputId last) {
      const ReadBack from = output_.read_back();
      // Other ranks cannot read the stand-ins of this process.
      Reading reading = this->reading(io_.threads, progress);
      if (!from.folder) reading.readers = nullptr;
      stats.bytes_verified +=
          read_back(in_folder(from.folder, sums_->meant(from.path, from.shown, first, last)),
                    options_.limit_rate, reading);
    };
  }
  help.write_again = [&](OutputId out) { write_again(out); };
  return help;
}

void Writing::load_before() {
  try {
    before_ = load_reached(*output_.folder());
    if (!before_) return;
    add_results(*output_.folder(), *before_);
    for (const SentWork& sent : before_->sent) output_.take(sent);
  } catch (const Error&) {
    output_.leave_run_before();
    throw;
  }
}

Planned Writing::plan_rest(const PlannedBy& by, ShareOptions share, uint64_t wanted,
                           Progress& progress) {
  // The commit checks the frames.
  const RecordChecks checks(job_.plan, records_to_check(job_, options_.verify, Frames::unchecked),
                            options_.verify);
  if (!before_) {
    RunState begun{.unit_bytes = io_.unit_bytes};
    for (OutputId out = 0; out < job_.plan.outputs().size(); ++out) {
      if (job_.plan.outputs()[out].size == 0) sink_->finish(out);
    }
    before_.emplace().run = begun;
  }
  // The journal keeps the results of the plan before, which are removed with it.
  if (options_.resume) save(before_->run);
  const uint64_t unit_bytes = before_->run.unit_bytes;
  const Units units(job_.plan, checks.extra_reads(), unit_bytes);
  const std::vector<BatchRange>& done = before_->run.done;
  check_reached(before_->run, units, unit_bytes);
  uint64_t left = units.bytes();
  for (const BatchRange& range : done) left -= units.bytes_of(range);
  if (share.portion_bytes > 0) share.portion_bytes = Shares::step_portion_bytes(left, wanted);
  share.cut_bytes = io_.cut_bytes;
  share.whole_outputs = options_.pack.has_value();
  const PortionCutter cutter(job_.plan, units, checks.use(), unit_bytes);
  StepPlan plan{.by = by, .job = rank_job(), .unit_bytes = unit_bytes};
  if (others_ != nullptr && others_->meeting.files()) {
    share.owner = [&](uint64_t batch) { return owner_of(plan.job, units, checks, batch); };
  }
  for (const fs::path& made : output_.made_folders()) plan.made_folders.push_back(made.string());
  PlanWriter writer(*output_.folder());
  writer.add(
      Shares(units, done, share), [&](const auto& batches) { return cutter.cut(batches).encode(); },
      progress);
  check_unchanged(*job_.inputs);
  progress.bytes_total = units.bytes();
  progress.bytes_done = units.bytes() - left;
  return writer.save(std::move(plan));
}

int Writing::owner_of(const RankJob& job, const Units& units, const RecordChecks& checks,
                      uint64_t batch) const {
  std::map<int, uint64_t> bytes;
  for (const PlanUnit& unit : units.batch(batch)) {
    if (unit.out == PlanUnit::kNoOutput) {
      bytes[job.inputs[checks.extra_reads()[unit.item].extent.file].owner] += unit.end;
      continue;
    }
    for (size_t i = unit.item; i < job_.plan.items().size(); ++i) {
      const CopyItem& item = job_.plan.items()[i];
      if (item.out != unit.out || item.dst >= unit.end) break;
      const uint64_t size = std::min(item.dst_end(), unit.end) - std::max(item.dst, unit.begin);
      job_.plan.for_each_source(
          item, [&](const Rows& rows, uint64_t) { bytes[job.inputs[rows.file].owner] += size; });
    }
  }
  const auto most = std::max_element(
      bytes.begin(), bytes.end(), [](const auto& a, const auto& b) { return a.second < b.second; });
  return most == bytes.end() ? 0 : most->first;
}

std::vector<RankStats> Writing::work_with_others(Progress& progress) {
  plan_rest(others_->by, {.ranks = others_->meeting.size()}, 0, progress);
  const Folder& folder = *output_.folder();
  work_with_ranks(others_->meeting, folder, {}, io_.threads, progress);
  Reached now{.run = before_->run};
  std::vector<RankStats> ranks = add_results(folder, now);
  for (const SentWork& sent : now.sent) output_.take(sent);
  before_->run = std::move(now.run);
  before_->bytes_stored += now.bytes_stored;
  ranks.resize(static_cast<size_t>(others_->meeting.size()));
  for (size_t rank = 0; rank < ranks.size(); ++rank) {
    ranks[rank].host = others_->meeting.member(static_cast<int>(rank)).host;
  }
  if (sums_) sums_->restore(now.sums);
  progress.bytes_done = 0;
  return ranks;
}

Reading Writing::reading(unsigned threads, Progress& progress) {
  return {threads, progress, readers_ ? &*readers_ : nullptr};
}

std::vector<MeantFile> Writing::in_folder(const std::optional<Folder>& folder,
                                          std::vector<MeantFile> files) {
  for (MeantFile& file : files) file.folder = folder;
  return files;
}

void Writing::take_over() {
  const fs::path folder = output_.folder()->path();
  const ReadBack from = output_.read_back();
  try {
    in_context({.file = folder.string()}, [&] {
      if (const uint64_t unit = before_->run.unit_bytes; !is_unit_size(unit)) {
        throw IoError({}, "it was started in units of " + counted(unit, "byte"), 0);
      }
      sums_->restore(before_->sums);
    });
    Progress unseen;
    if (from.folder) {
      const auto shown = [&](OutputId out) { return (folder / from.path(out)).string(); };
      read_back(in_folder(from.folder, sums_->last_meant(kCheckedAgain, from.path, shown)), 0,
                {1, unseen});
    }
  } catch (const Error& error) {
    output_.leave_run_before();
    Error(error, error.message() + "; to start again, remove " + folder.string()).raise();
  }
  bytes_kept_ = sums_->bytes();
}

ContentHashes Writing::hashes(Progress& progress) {
  if (job_.hash == ContentHash::none) return {};
  if (job_.hash == ContentHash::check && before_) return {};
  std::vector<bool> done(before_ ? job_.plan.outputs().size() : 0);
  if (before_) {
    for (const OutputSums::State::Written& piece : before_->sums.written) done[piece.out] = true;
  }
  ContentHashes hashes = content_hashes(job_, done, reading(options_.threads, progress));
  if (job_.hash == ContentHash::check) check_content_hashes(job_, std::exchange(hashes, {}));
  return hashes;
}

void Writing::write_again(OutputId out) {
  Progress unseen;
  std::optional<PackedOutput> packed;
  if (options_.pack) packed.emplace(job_.plan, output_, *options_.pack, hashes_);
  Sink& sink = packed ? static_cast<Sink&>(*packed) : output_;
  execute_one(job_.plan, out, *job_.inputs, sink, unseen,
              {.threads = 1, .unit_bytes = io_.unit_bytes});
}

void Writing::set_sink() {
  Sink& written = sums_ ? static_cast<Sink&>(*sums_) : output_;
  if (options_.pack) packed_.emplace(job_.plan, written, *options_.pack, hashes_);
  sink_ = packed_ ? &*packed_ : &written;
}

void Writing::save(const RunState& reached) {
  output_.sync();
  save_reached(*output_.folder(), {reached, sums_->state(), bytes_stored()});
}

RankJob Writing::rank_job() const {
  RankJob job{.place = output_.place(),
              .options = {.limit_rate = options_.limit_rate,
                          .pack = options_.pack,
                          .sha256 = hashes_,
                          .keep_sums = sums_.has_value()}};
  job.place.path = fs::absolute(job.place.path);
  if (others_ != nullptr) {
    job.options.limit_rate = rate_of_rank(options_.limit_rate, others_->meeting.size());
    job.servers = others_->meeting.servers();
    // The files of a process stay here when it is killed. The files of another machine may be
    // lost with that.
    job.sync_results = options_.resume || options_.durable || options_.verify_output ||
                       file_system_kind(job.place.path) != FileSystemKind::local;
  }
  job.add_inputs(*job_.inputs);
  return job;
}

uint64_t Writing::bytes_stored() const {
  return (before_ ? before_->bytes_stored : 0) + (packed_ ? packed_->bytes_stored() : 0);
}

}  // namespace dsckpt
