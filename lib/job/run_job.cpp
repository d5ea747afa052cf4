#include "job/run_job.h"

#include <chrono>
#include <condition_variable>
#include <exception>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>

#include "base/text.h"
#include "exec/far_output.h"
#include "exec/journal.h"
#include "exec/record_checks.h"
#include "exec/staged_output.h"
#include "exec/step_files.h"
#include "io/far_files.h"
#include "job/content_hash.h"
#include "job/output_place.h"
#include "job/place.h"
#include "job/writing.h"

namespace dsckpt {
namespace fs = std::filesystem;
namespace {

constexpr std::chrono::milliseconds kCallbackInterval{100};

// Returns the options that affect the output besides the plan.
std::string deciding(const Job::Impl& job, const RunOptions& options) {
  std::string text = options.verify ? "--verify" : "";
  const auto add = [&](const std::string& part) { text += (text.empty() ? "" : ", ") + part; };
  if (options.pack) add("packed, level " + std::to_string(*options.pack));
  if (job.hash != ContentHash::none) add("--sha256");
  return text;
}

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
