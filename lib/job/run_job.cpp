#include "job/run_job.h"

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <exception>
#include <map>
#include <memory>
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
#include "exec/output_sums.h"
#include "exec/packed_output.h"
#include "exec/portion.h"
#include "exec/rank_job.h"
#include "exec/rank_readers.h"
#include "exec/rank_work.h"
#include "exec/read_back.h"
#include "exec/record_checks.h"
#include "exec/shares.h"
#include "exec/staged_output.h"
#include "exec/step_files.h"
#include "format/checked_records.h"
#include "io/far_files.h"
#include "io/file_system.h"
#include "io/folder.h"
#include "job/content_hash.h"

namespace dsckpt {
namespace fs = std::filesystem;
namespace {

constexpr std::chrono::milliseconds kCallbackInterval{100};

// Returns every record of which the plan reads a byte, whichever tool made the plan. With `all`,
// returns every record of the checkpoint.
std::vector<InputRecord> records_to_check(const Job::Impl& job, bool all,
                                          Frames frames = Frames::checked) {
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

// Returns the options that affect the output besides the plan.
std::string deciding(const Job::Impl& job, const RunOptions& options) {
  std::string text = options.verify ? "--verify" : "";
  const auto add = [&](const std::string& part) { text += (text.empty() ? "" : ", ") + part; };
  if (options.pack) add("packed, level " + std::to_string(*options.pack));
  if (job.hash != ContentHash::none) add("--sha256");
  return text;
}

// Outputs must not mix two states of an input.
void check_unchanged(const InputFiles& inputs) {
  for (FileId file = 0; file < inputs.size(); ++file) inputs[file].check_unchanged();
}

// Writes the outputs of a job, before they are committed.
class Writing {
 public:
  Writing(const Job::Impl& job, const RunOptions& options, const IoChoice& io, Output& output,
          const OtherRanks* others)
      : job_(job), options_(options), io_(io), output_(output), others_(others) {
    if (others != nullptr) readers_.emplace(others->meeting);
    if (options.verify_output || options.resume) {
      sums_.emplace(job.plan, output);
    }
    if (options.resume) load_before();
  }

  // Runs everything but the commit.
  RunStats operator()(Progress& progress) {
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

  // Writes the part of the plan that other processes will run. Finished work is in the journal.
  Planned plan(const PlannedBy& by, uint64_t wanted, Progress& progress) {
    if (before_) take_over();
    hashes_ = hashes(progress);
    set_sink();
    return plan_rest(by, {.portion_bytes = ~uint64_t{0}}, wanted, progress);
  }

  // Returns callbacks for the commit. `stats` counts the bytes that are read back.
  CommitHelp help(RunStats& stats, Progress& progress) {
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

 private:
  // So many of the last bytes that the earlier run wrote are read back.
  static constexpr uint64_t kCheckedAgain = uint64_t{256} << 20;

  void load_before() {
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

  // `wanted`: about so many portions; 0: as many as suit.
  Planned plan_rest(const PlannedBy& by, ShareOptions share, uint64_t wanted, Progress& progress) {
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
        Shares(units, done, share),
        [&](const auto& batches) { return cutter.cut(batches).encode(); }, progress);
    check_unchanged(*job_.inputs);
    progress.bytes_total = units.bytes();
    progress.bytes_done = units.bytes() - left;
    return writer.save(std::move(plan));
  }

  // The rank that has the file which most bytes of a batch come from.
  int owner_of(const RankJob& job, const Units& units, const RecordChecks& checks,
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
    const auto most =
        std::max_element(bytes.begin(), bytes.end(),
                         [](const auto& a, const auto& b) { return a.second < b.second; });
    return most == bytes.end() ? 0 : most->first;
  }

  // All ranks write what is left. Afterwards before_ has it, and execute() joins the checksums.
  std::vector<RankStats> work_with_others(Progress& progress) {
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

  Reading reading(unsigned threads, Progress& progress) {
    return {threads, progress, readers_ ? &*readers_ : nullptr};
  }

  static std::vector<MeantFile> in_folder(const std::optional<Folder>& folder,
                                          std::vector<MeantFile> files) {
    for (MeantFile& file : files) file.folder = folder;
    return files;
  }

  void take_over() {
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

  // Returns the hashes for packed files. The earlier run hashed what it wrote, and had compared all
  // inputs before.
  ContentHashes hashes(Progress& progress) {
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

  // Writes the same bytes again, from records that were checked. The output compares them.
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
    output_.sync();
    save_reached(*output_.folder(), {reached, sums_->state(), bytes_stored()});
  }

  RankJob rank_job() const {
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

  uint64_t bytes_stored() const {
    return (before_ ? before_->bytes_stored : 0) + (packed_ ? packed_->bytes_stored() : 0);
  }

  const Job::Impl& job_;
  const RunOptions& options_;
  const IoChoice& io_;
  Output& output_;
  const OtherRanks* const others_;
  std::optional<RankReaders> readers_;  // all ranks
  ContentHashes hashes_;                // to be kept in packed files
  std::optional<OutputSums> sums_;
  std::optional<PackedOutput> packed_;
  Sink* sink_ = nullptr;  // the first one in the chain
  std::optional<Reached> before_;
  uint64_t bytes_kept_ = 0;
};

// Statistics of a run that finds everything written.
RunStats nothing_to_write(const Job::Impl& job) {
  RunStats stats;
  stats.bytes_written = stats.bytes_stored = stats.bytes_kept = job.plan.bytes_written();
  return stats;
}

Pointer pointer_of(const Place& place, const fs::path& output) {
  if (place.pointer.empty()) return {};
  return {pointer_file(place, output), name_of(output)};
}

// Leftovers that could not be removed are named with the error, since no other message names them.
[[noreturn]] void fail_with_notes(const Error& error, Output& output, bool forever = false) {
  const size_t said = output.notes().size();
  // A damaged input will be damaged the next time too.
  output.give_up(forever || error.kind() == ErrorKind::corrupt);
  if (output.notes().size() == said) error.raise();
  std::string text = error.message();
  for (size_t i = said; i < output.notes().size(); ++i) text += "\n" + output.notes()[i];
  Error(error, text).raise();
}

// Asks the callback regularly whether the run should continue, until end().
class Watch {
 public:
  Watch(Progress& progress, const ProgressCallback& callback)
      : thread_([this, &progress, &callback] { ask(progress, callback); }) {}
  ~Watch() { stop(); }
  Watch(const Watch&) = delete;
  Watch& operator=(const Watch&) = delete;

  // Stops asking. Throws the callback's exception, if any.
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
  std::exception_ptr thrown_ = {};  // belongs to the thread until stop()
  std::thread thread_;
};

fs::path target_of(const Job::Impl& job, const fs::path& output) {
  std::error_code ignored;
  // A link to nothing is reported by the check of the output.
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

// Returns the place of an output in an object store, or nullopt for a local folder.
std::optional<FarPlace> store_of(const fs::path& output) {
  std::optional<FarPlace> place = far_place(output);
  if (place || !is_far(output)) return place;
  throw UsageError(shown_path(output) + ": cannot be written to")
      .with_hint("outputs go to a folder, or to s3://BUCKET/PREFIX");
}

// Checks an output in an object store.
void check_far(const Job::Impl& job, const FarPlace& place, const RunOptions& options) {
  const std::string name = place.name + (place.path.empty() ? "" : "/" + place.path);
  if (options.resume) {
    throw UsageError(name + ": several ranks can resume only in folders")
        .with_hint(
            "give each process --share I/N and --plan-in DIR: the same command resumes those");
  }
  if (options.stripe) throw UsageError(name + ": --stripe is for folders on Lustre");
  if (!job.place.pointer.empty() && place.path.empty()) {
    throw UsageError(name + ": is not a folder that " + job.place.pointer + " can name")
        .with_hint("give a prefix: " + name + "/universal");
  }
}

FarOptions far_options(const Job::Impl& job, const RunOptions& options) {
  return {.force = options.force,
          .whole_folder = job.place.whole,
          .packed = options.pack.has_value(),
          .part_bytes = far_part_bytes(job.plan)};
}

// How an output is shared with other processes.
struct Sharing {
  const OtherRanks* others = nullptr;
  const JobIdentity* identity = nullptr;  // of a run that can be resumed
  bool only_goes_on = false;
  bool in_steps = false;
  // The folder for the plan of an output in an object store.
  fs::path planned_in = {};
  FolderCheck check = {};

  bool is_shared() const { return others != nullptr || in_steps; }
};

// The outputs that a plan for an object store has begun.
std::optional<FarStaging> begun_in(const fs::path& planned_in) {
  const std::optional<Resumable> found = find_resumable(planned_in, false);
  if (!found || !has_plan(found->folder)) return std::nullopt;
  return load_plan(found->folder).job.place.far;
}

// Each thread waits for one request with a part in memory, beside which units are short.
IoChoice far_io(const Job::Impl& job, const FarPlace& place, unsigned threads) {
  IoChoice io;
  io.unit_bytes = 512 << 10;
  io.cut_bytes = far_part_bytes(job.plan);
  io.threads = threads != 0 ? threads : std::max(place.store->requests(), far_requests());
  // Files that are not split have long parts.
  const uint64_t threads_of_short_parts = io.threads * kShortestFarPart / far_part_bytes(job.plan);
  io.threads = static_cast<unsigned>(std::max<uint64_t>(threads_of_short_parts, 1));
  return io;
}

IoChoice io_to(const Job::Impl& job, const fs::path& output, const RunOptions& options) {
  const std::optional<FarPlace> far = store_of(output);
  return far ? far_io(job, *far, options.threads) : io_of(job, output, options);
}

// The output of a run. The identity in `sharing` must outlive it.
std::unique_ptr<Output> output_of(const Job::Impl& job, const fs::path& output,
                                  const RunOptions& options, const IoChoice& io,
                                  const Sharing& sharing) {
  if (const std::optional<FarPlace> place = store_of(output)) {
    FarOptions far = far_options(job, options);
    far.here = output;
    far.job = sharing.identity;
    if (sharing.in_steps) {
      far.folder = sharing.planned_in;
      far.begun = begun_in(sharing.planned_in);
    } else if (sharing.others != nullptr) {
      far.folder = sharing.others->meeting.make_folder().path();
    }
    return std::make_unique<FarOutput>(job.plan, *place, std::move(far));
  }
  return std::make_unique<StagedOutput>(job.plan, target_of(job, output),
                                        StageOptions{.force = options.force,
                                                     .durable = options.durable,
                                                     .whole_folder = job.place.whole,
                                                     .may_replace = job.place.is_ours,
                                                     .direct = io.direct,
                                                     .write_bytes = io.write_bytes,
                                                     .stripe = striping_of(options, io),
                                                     .shared = sharing.is_shared(),
                                                     .packed = options.pack.has_value(),
                                                     .job = sharing.identity,
                                                     .check = sharing.check,
                                                     .only_goes_on = sharing.only_goes_on});
}

}  // namespace

std::string check_run(const Job& job, const fs::path& output, const RunOptions& options) {
  if (const std::optional<FarPlace> far = store_of(output)) {
    check_far(*job, *far, options);
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
    // A plan reads almost the same amount from each of its files.
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
  // A plan may copy a million empty records, whose headers do not affect the shares.
  const RecordChecks checks(job->plan, records_to_check(*job, options.verify, Frames::unchecked),
                            options.verify);
  const IoChoice io = io_of(*job, output, options);
  return forecast_shares(
      job->plan, checks.use(), io.unit_bytes,
      {.ranks = ranks, .cut_bytes = io.cut_bytes, .whole_outputs = options.pack.has_value()});
}

namespace {

void check_can_be_in_steps(const Job& job, const fs::path& output, const RunOptions& options,
                           const fs::path& planned_in) {
  const std::optional<FarPlace> far = store_of(output);
  if (far) check_far(*job, *far, options);
  if (far && planned_in.empty()) {
    throw UsageError(shown_path(output) + ": its plan needs a folder that all steps see")
        .with_hint("--plan-in DIR names a new one");
  }
  if (!far && !planned_in.empty()) {
    throw UsageError("--plan-in is for outputs in object stores: the plan of " + output.string() +
                     " is kept beside it, or in it");
  }
}

fs::path place_of_steps(const Job& job, const fs::path& output, const fs::path& planned_in) {
  return planned_in.empty() ? target_of(*job, output) : planned_in;
}

RunStats run_and_commit(const Job& job, const fs::path& output, const RunOptions& options,
                        Sharing sharing, Progress& progress) {
  const IoChoice io = io_to(*job, output, options);
  std::optional<JobIdentity> identity;
  if (options.resume) identity = identity_of(job->plan, *job->inputs, deciding(*job, options));
  sharing.identity = identity ? &*identity : nullptr;
  const std::unique_ptr<Output> to = output_of(*job, output, options, io, sharing);
  RunStats stats;
  try {
    to->prepare();
    std::optional<Writing> writing;
    if (to->is_written()) {
      stats = nothing_to_write(*job);
    } else {
      writing.emplace(*job, options, io, *to, sharing.others);
      stats = (*writing)(progress);
    }
    to->commit(pointer_of(job->place, output),
               writing ? writing->help(stats, progress) : CommitHelp());
  } catch (const Error& error) {
    fail_with_notes(error, *to);
  }
  stats.notes = to->notes();
  return stats;
}

}  // namespace

RunStats run(const Job& job, const fs::path& output, const RunOptions& options, Progress& progress,
             const OtherRanks* others, const FolderCheck& check) {
  if (job->hash == ContentHash::check) check_has_content_hashes(*job);
  if (const std::optional<FarPlace> far = store_of(output)) check_far(*job, *far, options);
  return run_and_commit(job, output, options, {.others = others, .check = check}, progress);
}

Planned plan_steps(const Job& job, const fs::path& output, const RunOptions& given,
                   const PlannedBy& by, const StepPlace& place, Progress& progress) {
  check_can_be_in_steps(job, output, given, place.planned_in);
  if (job->hash == ContentHash::check) check_has_content_hashes(*job);
  RunOptions options = given;
  options.resume = true;
  const JobIdentity identity = identity_of(job->plan, *job->inputs, deciding(*job, options));
  const fs::path there = place_of_steps(job, output, place.planned_in);
  const Steps before = find_steps(there);
  if (before.folder && has_plan(*before.folder)) {
    return planned_before(*before.folder, identity, place.planned_in.empty() ? output : there);
  }
  const IoChoice io = io_to(*job, output, options);
  const std::unique_ptr<Output> to =
      output_of(*job, output, options, io,
                {.identity = &identity, .in_steps = true, .planned_in = place.planned_in});
  Planned planned;
  try {
    to->prepare();
    if (to->is_written()) {
      planned = PlanWriter(*to->folder()).save({.by = by});
    } else {
      planned = Writing(*job, options, io, *to, nullptr).plan(by, place.portions, progress);
    }
  } catch (const Error& error) {
    fail_with_notes(error, *to, !to->goes_on());
  }
  to->hand_over();
  return planned;
}

std::optional<RunStats> commit_planned(const Job& job, const fs::path& output,
                                       const RunOptions& given, const fs::path& planned_in,
                                       Progress& progress) {
  if (!can_go_on(place_of_steps(job, output, planned_in))) return std::nullopt;
  if (job->hash == ContentHash::check) check_has_content_hashes(*job);
  RunOptions options = given;
  options.resume = true;
  return run_and_commit(
      job, output, options,
      {.only_goes_on = true, .in_steps = !planned_in.empty(), .planned_in = planned_in}, progress);
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
