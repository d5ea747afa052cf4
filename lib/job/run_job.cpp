#include "job/run_job.h"

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <exception>
#include <mutex>
#include <thread>
#include <utility>

#include "base/bytes.h"
#include "base/kernels.h"
#include "base/text.h"
#include "exec/commit.h"
#include "exec/executor.h"
#include "exec/far_output.h"
#include "exec/io_choice.h"
#include "exec/journal.h"
#include "exec/leader.h"
#include "exec/output_sums.h"
#include "exec/packed_output.h"
#include "exec/portion.h"
#include "exec/rank_words.h"
#include "exec/read_back.h"
#include "exec/record_checks.h"
#include "exec/shares.h"
#include "exec/staged_output.h"
#include "exec/step_files.h"
#include "format/checked_records.h"
#include "io/far_files.h"
#include "io/folder.h"
#include "job/content_hash.h"

namespace dsckpt {
namespace fs = std::filesystem;
namespace {

constexpr std::chrono::milliseconds kCallbackInterval{100};

// Every record that the plan reads any byte of, whatever made the plan; with `all`, every one of
// the checkpoint.
std::vector<InputRecord> records_to_check(const Job::Impl& job, bool all,
                                          Frames frames = Frames::checked) {
  std::vector<InputRecord> records = records_read(job.plan, *job.inputs, job.as_they_are, frames);
  if (!all || !job.checkpoint) return records;
  std::vector<FileId> files;
  for (const CheckpointFile& file : job.checkpoint->archives())
    files.push_back(file.archive->file());
  for (const DataFile& file : job.checkpoint->files().data) files.push_back(file.id);
  for (const InputRecord& record : records) files.push_back(record.extent.file);
  return all_records(*job.inputs, std::move(files), frames);
}

// Of what the plan reads: in files none of which has a record among `records`, and that are not
// packed.
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

// What decides, besides the plan, what is written and checked.
std::string deciding(const Job::Impl& job, const RunOptions& options) {
  std::string text = options.verify ? "--verify" : "";
  const auto add = [&](const std::string& part) { text += (text.empty() ? "" : ", ") + part; };
  if (options.pack) add("packed, level " + std::to_string(*options.pack));
  if (job.hash != ContentHash::none) add("--sha256");
  return text;
}

// Nothing is mixed of two states of an input.
void check_unchanged(const InputFiles& inputs) {
  for (FileId file = 0; file < inputs.size(); ++file) inputs[file].check_unchanged();
}

// The outputs of a job on their way to their place.
class Writing {
 public:
  // `staged`: `output`, if that is a folder; nullptr: it is in an object store, and all there is is
  // one process that does not go on. `output_path`: where it is going to be.
  Writing(const Job::Impl& job, const RunOptions& options, const IoChoice& io, Output& output,
          StagedOutput* staged, fs::path output_path, Group* group)
      : job_(job),
        options_(options),
        io_(io),
        output_(output),
        staged_(staged),
        output_path_(std::move(output_path)),
        group_(group) {
    if (options.verify_output || options.resume) {
      sums_.emplace(job.plan, output);
    }
    if (options.resume) load_before();
  }

  // Everything but the commit.
  RunStats operator()(Progress& progress) {
    if (before_) take_over();
    hashes_ = hashes(progress);
    if (group_ == nullptr) set_sink();
    std::vector<InputRecord> records = records_to_check(job_, options_.verify);
    const uint64_t without_checksum = bytes_without_checksum(job_, records);
    ExecOptions execution{.threads = io_.threads,
                          .unit_bytes = before_ ? before_->run.unit_bytes : io_.unit_bytes,
                          .records = std::move(records),
                          .check_all_records = options_.verify,
                          .limit_rate = options_.limit_rate};
    if (options_.resume) {
      if (before_) execution.from = &before_->run;
      execution.save = [&](const RunState& reached) { save(reached); };
      execution.save_every = options_.save_every;
      execution.save_between_outputs = packed_.has_value();
    }
    RunStats stats =
        group_ == nullptr
            ? execute(job_.plan, *job_.inputs, *sink_, progress, execution)
            : execute_in_group(*group_, job_.plan, *job_.inputs, group_work(), progress, execution);
    stats.bytes_without_checksum = without_checksum;
    stats.has_checksums = without_checksum == 0 || without_checksum < job_.plan.bytes_read();
    stats.bytes_kept = bytes_kept_;
    if (packed_) stats.bytes_stored = bytes_stored();
    if (group_ != nullptr && options_.pack && before_) stats.bytes_stored += before_->bytes_stored;
    if (options_.verify_output && staged_ != nullptr) {
      staged_->sync();
      const std::vector<MeantFile> meant =
          in_staging(sums_->meant([&](OutputId out) { return staged_->staged_name(out); },
                                  [&](OutputId out) { return staged_->final_path(out).string(); }));
      stats.bytes_verified = read_back(meant, options_.limit_rate, {io_.threads, progress, group_});
    }
    check_unchanged(*job_.inputs);
    return stats;
  }

  // Writes what other processes do of it. The journal has what is done before.
  Planned plan(const PlannedBy& by, uint64_t wanted, Progress& progress) {
    if (before_) take_over();
    hashes_ = hashes(progress);
    set_sink();
    const RecordChecks checks(job_.plan, records_to_check(job_, options_.verify), options_.verify);
    if (!before_) {
      RunState begun{.unit_bytes = io_.unit_bytes};
      for (OutputId out = 0; out < job_.plan.outputs().size(); ++out) {
        if (job_.plan.outputs()[out].size == 0) sink_->finish(out);
      }
      save(begun);
      before_.emplace().run = begun;
    }
    const uint64_t unit_bytes = before_->run.unit_bytes;
    const Units units(job_.plan, checks.extra_reads(), unit_bytes);
    const std::vector<BatchRange>& done = before_->run.done;
    check_reached(before_->run, units, unit_bytes);
    uint64_t left = units.bytes();
    for (const BatchRange& range : done) left -= units.bytes_of(range);
    const uint64_t longest =
        wanted > 0 ? left / wanted + 1 : std::max(left / kPortions, kShortestPortion);
    Shares shares(units, done,
                  {.cut_bytes = io_.cut_bytes,
                   .whole_outputs = options_.pack.has_value(),
                   .portion_bytes = std::min(longest, Shares::kLongest)});
    const PortionCutter cutter(job_.plan, units, checks.use(), unit_bytes);
    StepPlan plan{.by = by, .job = rank_job(), .unit_bytes = unit_bytes};
    for (const fs::path& made : staged_->made_folders()) plan.made_folders.push_back(made.string());
    std::string portions;
    while (const std::optional<BatchRange> batches = shares.take(0)) {
      if (progress.cancelled) throw InterruptedError();
      const std::string portion = cutter.cut(*batches).encode();
      plan.portions.push_back({.batches = *batches,
                               .bytes = units.bytes_of(*batches),
                               .begin = portions.size(),
                               .size = portion.size(),
                               .crc = crc32(0, as_byte_span(portion))});
      portions += portion;
    }
    check_unchanged(*job_.inputs);
    Planned planned{
        .folder = staged_->folder().path(), .portions = plan.portions.size(), .bytes = left};
    save_plan(staged_->folder(), std::move(plan), portions);
    return planned;
  }

  // What a commit to an object store may need. `stats` gets what is read back.
  CommitHelp help(RunStats& stats, Progress& progress) {
    CommitHelp help;
    if (options_.verify_output && staged_ == nullptr) {
      help.read_back = [&](OutputId first, OutputId last) {
        std::vector<MeantFile> meant = sums_->meant(
            [&](OutputId out) {
              return output_path_ /
                     stored_name(job_.plan.outputs()[out], options_.pack.has_value());
            },
            [&](OutputId out) { return shown_path(output_path_ / job_.plan.outputs()[out].path); },
            first, last);
        stats.bytes_verified +=
            read_back(meant, options_.limit_rate, {io_.threads, progress, nullptr});
      };
    }
    help.write_again = [&](OutputId out) { write_again(out); };
    return help;
  }

 private:
  // Of a plan: so many portions, unless that makes them too short for what each costs besides.
  static constexpr uint64_t kPortions = 256;
  static constexpr uint64_t kShortestPortion = uint64_t{64} << 20;
  // Of what the run before wrote last.
  static constexpr uint64_t kCheckedAgain = uint64_t{256} << 20;

  void load_before() {
    try {
      before_ = load_reached(staged_->folder());
      if (before_) add_results(staged_->folder(), *before_);
    } catch (const Error&) {
      staged_->leave_run_before();
      throw;
    }
  }

  std::vector<MeantFile> in_staging(std::vector<MeantFile> files) const {
    for (MeantFile& file : files) file.folder = staged_->folder();
    return files;
  }

  void take_over() {
    const std::string folder = staged_->folder().path().string();
    try {
      in_context({.file = folder}, [&] {
        if (const uint64_t unit = before_->run.unit_bytes; !is_unit_size(unit)) {
          throw IoError({}, "it was begun in units of " + counted(unit, "byte"), 0);
        }
        sums_->restore(before_->sums);
      });
      Progress unseen;
      read_back(in_staging(sums_->last_meant(
                    kCheckedAgain, [&](OutputId out) { return staged_->staged_name(out); },
                    [&](OutputId out) { return staged_->staged_path(out).string(); })),
                0, {1, unseen});
    } catch (const Error& error) {
      staged_->leave_run_before();
      Error(error, error.message() + "; to begin anew, remove " + folder).raise();
    }
    bytes_kept_ = sums_->bytes();
  }

  // Those to be kept in packed files. What the run before has written was hashed by it, and before
  // it wrote anything it had compared all of them.
  ContentHashes hashes(Progress& progress) const {
    if (job_.hash == ContentHash::none) return {};
    if (job_.hash == ContentHash::check && before_) return {};
    std::vector<bool> done(before_ ? job_.plan.outputs().size() : 0);
    if (before_) {
      for (const OutputSums::State::Written& piece : before_->sums.written) done[piece.out] = true;
    }
    ContentHashes hashes = content_hashes(job_, done, {options_.threads, progress, group_});
    if (job_.hash == ContentHash::check) check_content_hashes(job_, std::exchange(hashes, {}));
    return hashes;
  }

  // The same bytes as before, of records that were checked then: the output compares them.
  void write_again(OutputId out) {
    Progress unseen;
    std::optional<PackedOutput> packed;
    if (options_.pack) packed.emplace(job_.plan, output_, *options_.pack, hashes_);
    Sink& sink = packed ? static_cast<Sink&>(*packed) : output_;
    execute_one(job_.plan, out, *job_.inputs, sink, unseen,
                {.threads = 1, .unit_bytes = io_.unit_bytes});
  }

  void set_sink() {
    Sink& written = sums_ ? static_cast<Sink&>(*sums_) : output_;
    if (options_.pack) packed_.emplace(job_.plan, written, *options_.pack, hashes_);
    sink_ = packed_ ? &*packed_ : &written;
  }

  void save(const RunState& reached) {
    staged_->sync();
    save_reached(staged_->folder(),
                 {reached, sums_->state(), bytes_stored() + reached.bytes_stored});
  }

  RankJob rank_job() const {
    RankJob job{.place = staged_->place(),
                .options = {.limit_rate = options_.limit_rate,
                            .pack = options_.pack,
                            .sha256 = hashes_,
                            .keep_sums = true}};
    job.place.path = fs::absolute(job.place.path);
    job.add_inputs(*job_.inputs);
    return job;
  }

  GroupWork group_work() {
    return {.staged = *staged_,
            .sums = sums_ ? &*sums_ : nullptr,
            .pack = options_.pack,
            .sha256 = hashes_,
            .sync_portions = options_.resume,
            .sync_last = options_.durable || options_.verify_output,
            .cut_bytes = io_.cut_bytes};
  }

  uint64_t bytes_stored() const {
    return (before_ ? before_->bytes_stored : 0) + (packed_ ? packed_->bytes_stored() : 0);
  }

  const Job::Impl& job_;
  const RunOptions& options_;
  const IoChoice& io_;
  Output& output_;
  StagedOutput* const staged_;
  const fs::path output_path_;
  Group* const group_;
  ContentHashes hashes_;  // to be kept in packed files
  std::optional<OutputSums> sums_;
  std::optional<PackedOutput> packed_;
  Sink* sink_ = nullptr;  // the first of these
  std::optional<Reached> before_;
  uint64_t bytes_kept_ = 0;
};

// Of a run that finds everything written.
RunStats nothing_to_write(const Job::Impl& job) {
  RunStats stats;
  stats.bytes_written = stats.bytes_stored = stats.bytes_kept = job.plan.bytes_written();
  return stats;
}

Pointer pointer_of(const Place& place, const fs::path& output) {
  if (place.pointer.empty()) return {};
  return {pointer_file(place, output), name_of(output)};
}

// What could not be removed is said with the error, since nobody else will.
[[noreturn]] void fail_with_notes(const Error& error, Output& output, bool forever = false) {
  const size_t said = output.notes().size();
  // An input that is damaged will be so the next time.
  output.give_up(forever || error.kind() == ErrorKind::corrupt);
  if (output.notes().size() == said) error.raise();
  std::string text = error.message();
  for (size_t i = said; i < output.notes().size(); ++i) text += "\n" + output.notes()[i];
  Error(error, text).raise();
}

// Asks the callback, until it is ended, whether the run goes on.
class Watch {
 public:
  Watch(Progress& progress, const ProgressCallback& callback)
      : thread_([this, &progress, &callback] { ask(progress, callback); }) {}
  ~Watch() { stop(); }
  Watch(const Watch&) = delete;
  Watch& operator=(const Watch&) = delete;

  // Throws what the callback has thrown. It is not asked any more.
  void end() {
    stop();
    if (thrown_) std::rethrow_exception(thrown_);
  }

 private:
  void ask(Progress& progress, const ProgressCallback& callback) {
    std::unique_lock lock(mutex_);
    try {
      while (!wake_.wait_for(lock, kCallbackInterval, [this] { return done_; })) {
        if (!callback(progress.bytes_done, progress.bytes_total)) progress.cancelled = true;
      }
    } catch (...) {
      thrown_ = std::current_exception();
      progress.cancelled = true;
    }
  }

  void stop() {
    {
      const std::lock_guard lock(mutex_);
      done_ = true;
    }
    wake_.notify_all();
    if (thread_.joinable()) thread_.join();
  }

  std::mutex mutex_;
  std::condition_variable wake_;
  bool done_ = false;
  std::exception_ptr thrown_ = {};  // until stop() the thread's
  std::thread thread_;
};

fs::path target_of(const Job::Impl& job, const fs::path& output) {
  std::error_code ignored;
  // Whoever looks at the output says what is wrong with a link to nothing.
  const bool leads_nowhere =
      fs::is_symlink(fs::symlink_status(output, ignored)) && !fs::exists(output, ignored);
  return job.place.whole && !leads_nowhere ? resolved_path(output) : output;
}

IoChoice io_of(const Job::Impl& job, const fs::path& output, const RunOptions& options) {
  IoChoice io = choose_io(options.io, job.plan, *job.inputs,
                          file_systems(*job.inputs, target_of(job, output)), options.durable,
                          options.pack.has_value(), options.threads);
  if (options.stripe) io.cut_bytes = std::max(io.cut_bytes, options.stripe->bytes);
  return io;
}

std::optional<Striping> striping_of(const RunOptions& options, const IoChoice& io) {
  std::optional<Striping> striping = options.stripe;
  if (striping && striping->bytes == 0) striping->bytes = io.cut_bytes;
  return striping;
}

// Where an output in an object store is; nothing of one in a folder here.
std::optional<FarPlace> store_of(const fs::path& output) {
  std::optional<FarPlace> place = far_place(output);
  if (place || !is_far(output)) return place;
  throw UsageError(shown_path(output) + ": nobody can write there")
      .with_hint("outputs go to a folder, or to s3://BUCKET/PREFIX");
}

// Of an output in an object store.
void check_far(const Job::Impl& job, const FarPlace& place, const RunOptions& options,
               const Group* group) {
  const std::string name = place.name + (place.path.empty() ? "" : "/" + place.path);
  if (options.resume) {
    throw UsageError(name + ": --resume goes on in folders only")
        .with_hint("without it a run that stops leaves nothing there");
  }
  if (options.stripe) throw UsageError(name + ": --stripe is for folders on Lustre");
  if (group != nullptr) {
    throw UsageError(name + ": is written by one process, not by several ranks");
  }
  if (!job.place.pointer.empty() && place.path.empty()) {
    throw UsageError(name + ": is no folder that " + job.place.pointer + " can name")
        .with_hint("give a prefix: " + name + "/universal");
  }
}

FarOptions far_options(const Job::Impl& job, const RunOptions& options) {
  return {.force = options.force,
          .whole_folder = job.place.whole,
          .packed = options.pack.has_value(),
          .part_bytes = far_part_bytes(job.plan)};
}

// A thread waits for one request, which has a part in memory: units are short beside it.
IoChoice far_io(const Job::Impl& job, const FarPlace& place, unsigned threads) {
  IoChoice io;
  io.unit_bytes = 512 << 10;
  io.threads = threads != 0 ? threads : std::max(place.store->requests(), far_requests());
  // Files that nobody splits have long parts.
  const uint64_t threads_of_short_parts = io.threads * kShortestFarPart / far_part_bytes(job.plan);
  io.threads = static_cast<unsigned>(std::max<uint64_t>(threads_of_short_parts, 1));
  return io;
}

RunStats run_far(const Job::Impl& job, const FarPlace& place, const fs::path& output,
                 const RunOptions& options, Progress& progress, Group* group) {
  check_far(job, place, options, group);
  const IoChoice io = far_io(job, place, options.threads);
  FarOutput far(job.plan, place, far_options(job, options));
  RunStats stats;
  try {
    far.prepare();
    Writing writing(job, options, io, far, nullptr, output, nullptr);
    stats = writing(progress);
    far.commit(pointer_of(job.place, output), writing.help(stats, progress));
  } catch (const Error& error) {
    fail_with_notes(error, far);
  }
  stats.notes = far.notes();
  return stats;
}

}  // namespace

std::string check_run(const Job& job, const fs::path& output, const RunOptions& options) {
  if (const std::optional<FarPlace> far = store_of(output)) {
    check_far(*job, *far, options, nullptr);
    FarOutput to(job->plan, *far, far_options(*job, options));
    return to.check();
  }
  if (options.resume) return "";
  return StagedOutput(job->plan, target_of(*job, output),
                      {.force = options.force,
                       .whole_folder = job->place.whole,
                       .stripe = options.stripe,
                       .packed = options.pack.has_value()})
      .check();
}

std::optional<FarForecast> far_forecast(const Job& job, const fs::path& output,
                                        const RunOptions& options) {
  constexpr uint64_t kRequest = 8 << 20;
  FarForecast forecast;
  for (FileId file = 0; file < job->inputs->size(); ++file) {
    if (!is_far((*job->inputs)[file].path())) continue;
    // A plan reads of all its files alike, or nearly.
    forecast.bytes_to_read = job->plan.bytes_read();
    ++forecast.requests_to_read;
  }
  forecast.requests_to_read += forecast.bytes_to_read / kRequest;
  const std::optional<FarPlace> far = store_of(output);
  if (far) {
    const FarOutput::Cost cost = FarOutput(job->plan, *far, far_options(*job, options)).cost();
    forecast.requests_to_write = cost.requests;
    forecast.bytes_to_write = cost.bytes;
  }
  if (forecast.requests_to_read == 0 && !far) return std::nullopt;
  return forecast;
}

ShareForecast forecast(const Job& job, const fs::path& output, const RunOptions& options,
                       int ranks) {
  // A million empty records may be copied: what is around them changes no share.
  const RecordChecks checks(job->plan, records_to_check(*job, options.verify, Frames::unchecked),
                            options.verify);
  const IoChoice io = io_of(*job, output, options);
  return forecast_shares(
      job->plan, checks.use(), io.unit_bytes,
      {.ranks = ranks, .cut_bytes = io.cut_bytes, .whole_outputs = options.pack.has_value()});
}

namespace {

StageOptions stage_options(const Job& job, const RunOptions& options, const IoChoice& io,
                           const JobIdentity* identity) {
  return {.force = options.force,
          .durable = options.durable,
          .whole_folder = job->place.whole,
          .may_replace = job->place.is_ours,
          .direct = io.direct,
          .write_bytes = io.write_bytes,
          .stripe = striping_of(options, io),
          .packed = options.pack.has_value(),
          .job = identity};
}

void check_can_be_in_steps(const Job& job, const fs::path& output) {
  if (store_of(output)) {
    throw UsageError(shown_path(output) + ": is written by one process, not in steps")
        .with_hint("without --emit-plan and --share it is");
  }
  for (FileId file = 0; file < job->inputs->size(); ++file) {
    const InputFile& input = (*job->inputs)[file];
    if (!is_far(input.path())) continue;
    throw UsageError(shown_path(input.path()) + ": is read by one process, not in steps")
        .with_hint("steps read a mounted bucket (rclone mount)");
  }
}

RunStats run_into_folder(const Job& job, const fs::path& output, const RunOptions& options,
                         bool only_goes_on, Progress& progress, Group* group,
                         const FolderCheck& check = {}) {
  const IoChoice io = io_of(*job, output, options);
  std::optional<JobIdentity> identity;
  if (options.resume) identity = identity_of(job->plan, *job->inputs, deciding(*job, options));
  StageOptions stage = stage_options(job, options, io, identity ? &*identity : nullptr);
  stage.shared = group != nullptr;
  stage.only_goes_on = only_goes_on;
  StagedOutput staged(job->plan, target_of(*job, output), stage);
  RunStats stats;
  bool is_elsewhere = false;
  try {
    staged.prepare();
    is_elsewhere = true;
    if (check) check(staged.folder_above());
    is_elsewhere = false;
    stats = staged.is_written()
                ? nothing_to_write(*job)
                : Writing(*job, options, io, staged, &staged, output, group)(progress);
    staged.commit(pointer_of(job->place, output));
  } catch (const Error& error) {
    fail_with_notes(error, staged, is_elsewhere);
  }
  stats.notes = staged.notes();
  return stats;
}

// What is planned in `folder`, if that is what `identity` says.
Planned planned_before(const Folder& folder, const JobIdentity& identity, const fs::path& output) {
  const std::string difference = difference_from_saved(folder, identity);
  if (!difference.empty()) {
    throw UsageError(folder.path().string() + ": something else is planned there: " + difference)
        .with_hint("dsckpt commit " + output.string() + " ends it, dsckpt abandon " +
                   output.string() + " removes it");
  }
  const StepPlan plan = load_plan(folder);
  Planned planned{
      .folder = folder.path(), .portions = plan.portions.size(), .bytes = 0, .was_there = true};
  for (const StepPlan::Entry& entry : plan.portions) planned.bytes += entry.bytes;
  return planned;
}

}  // namespace

RunStats run(const Job& job, const fs::path& output, const RunOptions& options, Progress& progress,
             Group* group, const FolderCheck& check) {
  if (job->hash == ContentHash::check) check_has_content_hashes(*job);
  if (const std::optional<FarPlace> far = store_of(output)) {
    return run_far(*job, *far, output, options, progress, group);
  }
  return run_into_folder(job, output, options, false, progress, group, check);
}

Planned plan_steps(const Job& job, const fs::path& output, const RunOptions& given,
                   const PlannedBy& by, uint64_t portions, Progress& progress) {
  check_can_be_in_steps(job, output);
  if (job->hash == ContentHash::check) check_has_content_hashes(*job);
  RunOptions options = given;
  options.resume = true;
  const JobIdentity identity = identity_of(job->plan, *job->inputs, deciding(*job, options));
  const fs::path target = target_of(*job, output);
  const Steps before = find_steps(target);
  if (before.folder && has_plan(*before.folder)) {
    return planned_before(*before.folder, identity, output);
  }
  const IoChoice io = io_of(*job, output, options);
  StageOptions stage = stage_options(job, options, io, &identity);
  stage.shared = true;
  StagedOutput staged(job->plan, target, stage);
  Planned planned;
  try {
    staged.prepare();
    if (staged.is_written()) {
      planned.folder = staged.folder().path();
      save_plan(staged.folder(), {.by = by}, "");
    } else {
      planned =
          Writing(*job, options, io, staged, &staged, output, nullptr).plan(by, portions, progress);
    }
  } catch (const Error& error) {
    fail_with_notes(error, staged, !staged.goes_on());
  }
  staged.hand_over();
  return planned;
}

std::optional<RunStats> commit_planned(const Job& job, const fs::path& output,
                                       const RunOptions& given, Progress& progress) {
  if (!can_go_on(target_of(*job, output))) return std::nullopt;
  if (job->hash == ContentHash::check) check_has_content_hashes(*job);
  RunOptions options = given;
  options.resume = true;
  return run_into_folder(job, output, options, true, progress, nullptr);
}

RunStats run(const Job& job, const fs::path& output, const RunOptions& options,
             const ProgressCallback& callback) {
  check_place(job->place, output, options.force, options.resume);
  Progress progress;
  if (!callback) return run(job, output, options, progress);
  Watch watch(progress, callback);
  RunStats stats;
  try {
    stats = run(job, output, options, progress);
  } catch (const InterruptedError&) {
    watch.end();
    throw;
  }
  watch.end();
  callback(progress.bytes_done, progress.bytes_total);
  return stats;
}

}  // namespace dsckpt
