#include "job/run_job.h"

#include <chrono>
#include <condition_variable>
#include <mutex>
#include <thread>
#include <utility>

#include "exec/executor.h"
#include "exec/io_choice.h"
#include "exec/output_sums.h"
#include "exec/packed_output.h"
#include "exec/staged_output.h"
#include "format/checked_records.h"
#include "job/content_hash.h"

namespace dsckpt {
namespace fs = std::filesystem;
namespace {

constexpr std::chrono::milliseconds kCallbackInterval{100};

// Every record that the plan reads any byte of, whatever made the plan; with `all`, every one of
// the checkpoint.
std::vector<InputRecord> records_to_check(const Job::Impl& job, bool all) {
  std::vector<InputRecord> records = records_read(job.plan, *job.inputs, job.as_they_are);
  if (!all || !job.checkpoint) return records;
  std::vector<FileId> files;
  for (const CheckpointFile& file : job.checkpoint->files()) files.push_back(file.archive->file());
  for (const InputRecord& record : records) files.push_back(record.extent.file);
  return all_records(*job.inputs, std::move(files));
}

bool has_checksums(const Job::Impl& job, const RunStats& stats) {
  if (stats.records_checked + stats.records_unchecked > 0 || stats.bytes_read == 0) return true;
  for (FileId file = 0; file < job.inputs->size(); ++file) {
    if ((*job.inputs)[file].encoding() == Encoding::packed) return true;
  }
  return false;
}

uint64_t read_back(const OutputSums& sums, StagedOutput& staged, unsigned threads,
                   const RunOptions& options, Progress& progress) {
  staged.sync();
  progress.bytes_total += sums.bytes();
  RateLimit limit(options.limit_rate, progress.cancelled);
  return sums.read_back([&](OutputId out) { return staged.staged_path(out); },
                        [&](OutputId out) { return staged.final_path(out).string(); }, threads,
                        limit, progress);
}

// Everything but the commit.
RunStats write(const Job::Impl& job, const RunOptions& options, const IoChoice& io,
               const ContentHashes& hashes, StagedOutput& staged, Progress& progress) {
  std::optional<OutputSums> sums;
  if (options.verify_output) {
    sums.emplace(job.plan, staged, [&](OutputId out) { return staged.is_patched(out); });
  }
  Sink& written = sums ? static_cast<Sink&>(*sums) : staged;
  std::optional<PackedOutput> packed;
  if (options.pack) packed.emplace(job.plan, written, *options.pack, hashes);
  RunStats stats =
      execute(job.plan, *job.inputs, packed ? static_cast<Sink&>(*packed) : written, progress,
              {.threads = io.threads,
               .unit_bytes = io.unit_bytes,
               .records = records_to_check(job, options.verify),
               .check_all_records = options.verify,
               .limit_rate = options.limit_rate});
  stats.has_checksums = has_checksums(job, stats);
  if (packed) stats.bytes_stored = packed->bytes_stored();
  if (sums) stats.bytes_verified = read_back(*sums, staged, io.threads, options, progress);
  return stats;
}

Pointer pointer_of(const Place& place, const fs::path& output) {
  if (place.pointer.empty()) return {};
  return {pointer_file(place, output), name_of(output)};
}

// What could not be removed is said with the error, since nobody else will.
[[noreturn]] void fail_with_notes(const Error& error, StagedOutput& staged) {
  const size_t said = staged.notes().size();
  staged.give_up();
  if (staged.notes().size() == said) error.raise();
  std::string text = error.message();
  for (size_t i = said; i < staged.notes().size(); ++i) text += "\n" + staged.notes()[i];
  Error(error, text).raise();
}

// Asks the callback, until it is destroyed, whether the run goes on.
class Watch {
 public:
  Watch(Progress& progress, const ProgressCallback& callback)
      : thread_([this, &progress, &callback] {
          std::unique_lock lock(mutex_);
          while (!wake_.wait_for(lock, kCallbackInterval, [this] { return done_; })) {
            if (!callback(progress.bytes_done, progress.bytes_total)) progress.cancelled = true;
          }
        }) {}
  ~Watch() {
    {
      const std::lock_guard lock(mutex_);
      done_ = true;
    }
    wake_.notify_all();
    thread_.join();
  }
  Watch(const Watch&) = delete;
  Watch& operator=(const Watch&) = delete;

 private:
  std::mutex mutex_;
  std::condition_variable wake_;
  bool done_ = false;
  std::thread thread_;
};

}  // namespace

RunStats run(const Job& job, const fs::path& output, const RunOptions& options,
             Progress& progress) {
  ContentHashes hashes;
  if (job->hash != ContentHash::none) hashes = content_hashes(*job, progress, options.threads);
  if (job->hash == ContentHash::check) check_content_hashes(*job, std::exchange(hashes, {}));

  const IoChoice io = choose_io(options.io, job->plan, *job->inputs, options.durable,
                                options.pack.has_value(), options.threads);
  const fs::path target =
      job->place.whole ? fs::weakly_canonical(fs::absolute(output)) : fs::path(output);
  StagedOutput staged(job->plan, target,
                      {.force = options.force,
                       .durable = options.durable,
                       .whole_folder = job->place.whole,
                       .direct = io.direct,
                       .packed = options.pack.has_value()});
  RunStats stats;
  try {
    staged.prepare();
    stats = write(*job, options, io, hashes, staged, progress);
    staged.commit(pointer_of(job->place, output));
  } catch (const Error& error) {
    fail_with_notes(error, staged);
  }
  stats.notes = staged.notes();
  return stats;
}

RunStats run(const Job& job, const fs::path& output, const RunOptions& options,
             const ProgressCallback& callback) {
  check_place(job->place, output, options.force);
  Progress progress;
  if (!callback) return run(job, output, options, progress);
  const RunStats stats = [&] {
    const Watch watch(progress, callback);
    return run(job, output, options, progress);
  }();
  callback(progress.bytes_done, progress.bytes_total);
  return stats;
}

}  // namespace dsckpt
