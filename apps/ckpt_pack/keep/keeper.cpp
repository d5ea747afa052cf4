#include "ckpt_pack/keep/keeper.h"

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <iostream>
#include <mutex>
#include <nlohmann/json.hpp>
#include <thread>
#include <utility>

#include "base/text.h"
#include "ckpt_pack/keep/removal.h"
#include "cli/messages.h"
#include "cli/progress_display.h"
#include "codec/frame.h"
#include "dsckpt/checkpoint.h"
#include "dsckpt/error.h"
#include "exec/workers.h"
#include "inspect/verify/verify.h"
#include "io/far_files.h"
#include "io/read_limit.h"
#include "job/run_job.h"

namespace dsckpt::pack {
namespace fs = std::filesystem;
namespace {

constexpr std::chrono::milliseconds kAskEvery{50};
constexpr int kAsksALook = 20;  // checks of the place during a run

// Stops a run if the process is asked to end, or if the place vanishes.
class PlaceWatch {
 public:
  PlaceWatch(const Progress& stop, const KeptPlace& place, Progress& job)
      : thread_([this, &stop, &place, &job] { watch(stop, place, job); }) {}
  ~PlaceWatch() { end(); }
  PlaceWatch(const PlaceWatch&) = delete;
  PlaceWatch& operator=(const PlaceWatch&) = delete;

  void end() {
    {
      const std::lock_guard lock(mutex_);
      done_ = true;
    }
    wake_.notify_all();
    if (thread_.joinable()) thread_.join();
  }
  bool is_lost() const { return lost_; }

 private:
  void watch(const Progress& stop, const KeptPlace& place, Progress& job) {
    std::unique_lock lock(mutex_);
    for (int count = 0; !wake_.wait_for(lock, kAskEvery, [this] { return done_; }); ++count) {
      if (stop.cancelled) job.cancelled = true;
      if (count % kAsksALook != 0 || place.is_same()) continue;
      lost_ = true;
      job.cancelled = true;
    }
  }

  std::mutex mutex_;
  std::condition_variable wake_;
  bool done_ = false;
  std::atomic<bool> lost_{false};
  std::thread thread_;
};

IoError place_is_lost(const fs::path& path) {
  return IoError({.file = path.string()}, "the place is not there any more", 0);
}

int64_t nanoseconds(double seconds) {
  return static_cast<int64_t>(seconds * 1e9);
}

}  // namespace

void say_event(const cli::Common& common, const std::string& text, nlohmann::json data) {
  if (common.json) {
    cli::print_json("keep", std::move(data));
  } else {
    std::cout << printable(shown_text(text)) << "\n";
  }
  cli::flush_stdout();
}

Keeper::Keeper(const CLI::App& app, const cli::Common& common, const KeepArguments& args,
               const Progress& stop)
    : app_(app),
      common_(common),
      args_(args),
      stop_(stop),
      run_(fs::absolute(args.run).lexically_normal()),
      place_(args.to, args.run, args.force) {}

int Keeper::run() {
  for (bool is_first = true;; is_first = false) {
    kept_ = removed_ = waiting_ = refused_ = 0;
    failure_.reset();
    try {
      look();
    } catch (const InterruptedError&) {
      throw;
    } catch (const Error& error) {
      // A wrong request fails in the first pass. Later failures may be temporary.
      if (args_.once || (is_first && error.kind() == ErrorKind::usage)) throw;
      say_waiting(error);
    }
    if (args_.once) break;
    wait();
  }
  if (failure_) failure_->raise();
  if (common_.json) {
    say_event(common_, "",
              {{"event", "looked"},
               {"kept", kept_},
               {"removed", removed_},
               {"waiting", waiting_},
               {"refused", refused_}});
  }
  return refused_ == 0 ? cli::kDone : cli::kCheckFailed;
}

void Keeper::wait() const {
  const auto until = Clock::now() + std::chrono::duration<double>(args_.interval);
  while (Clock::now() < until) {
    stop_if_asked();
    std::this_thread::sleep_for(kAskEvery);
  }
}

void Keeper::stop_if_asked() const {
  if (stop_.cancelled) throw InterruptedError();
}

void Keeper::say_waiting(const Error& error) {
  const std::string why = error.what();
  if (waiting_for_ == why) return;
  waiting_for_ = why;
  say_event(common_, "waiting: " + why, {{"event", "waiting"}, {"why", why}});
}

void Keeper::say_once(Known& known, const char* event, const std::string& why) {
  const std::string text = std::string(event) + ": " + why;
  if (known.said == text) return;
  known.said = text;
  say_event(common_, known.seen.name + ": " + text,
            {{"event", event}, {"name", known.seen.name}, {"why", why}});
}

void Keeper::look() {
  std::vector<RunCheckpoint> all = run_.list();
  place_.open();
  if (!waiting_for_.empty()) {
    waiting_for_.clear();
    say_event(common_, "goes on", {{"event", "goes on"}});
  }
  for (const std::string& note :
       end_removals(run_, [&](const RunCheckpoint& each) { return is_part_of_safe(each); })) {
    cli::note(app_, common_, note);
  }
  forget_gone(all);
  clear_begun(all);
  for (const RunCheckpoint& each : all) {
    Known& known = known_[each.name];
    if (known.since == Clock::time_point() || !known.seen.same_as(each)) {
      known = {.since = Clock::now(), .said = known.said};
    }
    known.seen = each;
  }
  // The newest comes first, which saves the most if the machine fails.
  std::stable_sort(all.begin(), all.end(), [](const RunCheckpoint& a, const RunCheckpoint& b) {
    return a.changed > b.changed;
  });
  for (const RunCheckpoint& each : all) {
    stop_if_asked();
    look_at(each, all);
  }
  remove_by_policy(all);
}

// Forgets checkpoints that the training has removed.
void Keeper::forget_gone(const std::vector<RunCheckpoint>& all) {
  std::erase_if(known_, [&](const auto& entry) {
    return std::none_of(all.begin(), all.end(),
                        [&](const RunCheckpoint& each) { return each.name == entry.first; });
  });
}

// Leftovers of a stopped run are kept only if their checkpoint is still to be copied.
void Keeper::clear_begun(const std::vector<RunCheckpoint>& all) {
  const std::set<std::string> begun = place_.begun();
  for (const std::string& folder : begun) {
    const bool is_there = place_.records().contains(folder);
    const bool is_wanted = std::any_of(all.begin(), all.end(), [&](const RunCheckpoint& each) {
      return !is_safe(each) && place_.free_name(each.name) == folder;
    });
    if (is_wanted && !is_there) continue;
    const std::string note = place_.abandon(folder);
    if (note.empty()) {
      place_.end(folder);
    } else {
      cli::note(app_, common_, note);
    }
  }
}

bool Keeper::is_settled(const Known& known) const {
  if (known.seen.changed + nanoseconds(args_.interval) <= now_ns()) return true;
  // The clock of the file server may be ahead.
  return Clock::now() - known.since >= std::chrono::duration<double>(args_.interval);
}

bool Keeper::is_safe(const RunCheckpoint& checkpoint) const {
  return checkpoint.others.empty() && place_.find(checkpoint.name, checkpoint.files) != nullptr;
}

bool Keeper::is_part_of_safe(const RunCheckpoint& checkpoint) const {
  const auto& records = place_.records();
  return std::any_of(records.begin(), records.end(), [&](const auto& entry) {
    return entry.second.name == checkpoint.name && checkpoint.is_within(entry.second.files);
  });
}

void Keeper::look_at(const RunCheckpoint& checkpoint, const std::vector<RunCheckpoint>& all) {
  Known& known = known_.at(checkpoint.name);
  if (const Record* record = place_.find(checkpoint.name, checkpoint.files)) {
    known.step = record->step;
    known.is_verified = true;
    return;
  }
  if (!is_settled(known)) {
    ++waiting_;
    // Without --once the next pass comes soon.
    if (args_.once) say_once(known, "unfinished", "it has just changed, and may still be written");
    return;
  }
  try {
    if (const std::string why = run_.unfinished(checkpoint, all); !why.empty()) {
      ++waiting_;
      return say_once(known, "unfinished", why);
    }
    if (!known.is_verified && known.finding.empty()) verify_it(known);
    if (!known.finding.empty()) {
      ++refused_;
      return say_once(known, "damaged", known.finding);
    }
    bring(known);
  } catch (const InterruptedError&) {
    throw;
  } catch (const Error& error) {
    const std::optional<RunCheckpoint> now = run_.look(checkpoint.name);
    if (!now) return say_once(known, "gone", "the training has removed it");
    if (!now->same_as(checkpoint)) {
      ++waiting_;
      return;
    }
    if (!place_.is_same()) throw;
    if (error.kind() == ErrorKind::io) {
      ++waiting_;
      if (args_.once && !failure_) failure_ = error;
    } else {
      ++refused_;
    }
    say_once(known, error.kind() == ErrorKind::io ? "waiting" : "refused", error.what());
  }
}

// Verifies it, and sets `finding` if it is damaged. A save that is not finished looks the same, so
// it is verified again after any of its files changes.
void Keeper::verify_it(Known& known) {
  const fs::path folder = run_.path() / known.seen.name;
  std::vector<fs::path> paths;
  for (const SavedState& state : known.seen.states) {
    const fs::path& path = known.seen.states.size() == 1 ? folder : state.folder;
    if (std::find(paths.begin(), paths.end(), path) == paths.end()) paths.push_back(path);
  }
  for (const fs::path& path : paths) {
    InputFiles inputs;
    Progress progress;
    const cli::ProgressDisplay display(progress, common_);
    VerifyOptions options;
    options.threads = common_.threads;
    const PlaceWatch watch(stop_, place_, progress);
    const ReadLimit limit(args_.limit_rate, progress.cancelled);
    const VerifyReport report = [&] {
      try {
        return verify(inputs, path, options, progress);
      } catch (const InterruptedError&) {
        if (!watch.is_lost()) throw;
        throw place_is_lost(place_.path());
      }
    }();
    if (report.ok()) continue;
    const Finding& first = report.findings.front();
    known.finding = std::string(to_string(first.check)) + ": " +
                    (first.file.empty() ? "" : first.file + ": ") + first.message;
    if (report.findings.size() > 1) {
      known.finding += ", and " + counted(report.findings.size() - 1, "finding") + " more";
    }
    return;
  }
  known.step = run_.step_of(known.seen);
  known.is_verified = true;
}

std::string Keeper::how() const {
  if (!args_.strip.empty()) return args_.strip;
  return args_.pack ? "packed" : "copied";
}

Job Keeper::plan(const Known& known, Progress& progress) const {
  const RunCheckpoint& seen = known.seen;
  const fs::path folder = run_.path() / seen.name;
  KeptBeside beside;
  if (seen.is_tag) {
    for (const fs::path& file : run_.beside(nanoseconds(args_.interval))) {
      beside.files.push_back({file, file.filename().string()});
    }
  }
  const Keep keep = args_.strip == to_string(Keep::weights) ? Keep::weights : Keep::resume;
  // plan_strip() writes its own.
  if (seen.is_tag && args_.strip.empty()) {
    beside.texts.push_back({"latest", [&](const auto&) { return seen.name; }});
  }
  beside.texts.push_back({kRecordName, [&](const std::vector<JobFile>& outputs) {
                            return text_of({.name = seen.name,
                                            .is_tag = seen.is_tag,
                                            .step = known.step,
                                            .how = how(),
                                            .files = seen.files,
                                            .outputs = outputs});
                          }});
  Job job = [&] {
    if (args_.strip.empty()) {
      return plan_kept(folder, seen.is_tag ? seen.name : "", beside, args_.pack.has_value(),
                       &progress);
    }
    const Source source = Source::open(
        folder,
        {.optimizer_states = keep == Keep::resume, .weights = false, .progress = &progress});
    return plan_kept_strip(source, keep, beside);
  }();
  // The save may have continued: the files must be those that were verified and recorded.
  const std::optional<RunCheckpoint> now = run_.look(seen.name);
  if (!now || !now->same_as(seen)) {
    throw InconsistentError({.file = folder.string()}, "has changed since it was verified");
  }
  return job;
}

void Keeper::bring(Known& known) {
  const RunCheckpoint& seen = known.seen;
  Progress progress;
  const Job job = cli::while_shown(progress, common_, [&] { return plan(known, progress); });
  const std::string folder = place_.free_name(seen.name);
  const bool is_ours = place_.begun().contains(folder);
  place_.begin(folder);
  try {
    run_job(known, folder, is_ours, job, progress);
  } catch (const UsageError& error) {
    // An earlier run left a copy of other files, or with other options.
    if (!is_ours || place_.is_far()) throw;
    cli::note(app_, common_, seen.name + " starts again: " + error.what());
    if (const std::string note = place_.abandon(folder); !note.empty()) throw IoError({}, note, 0);
    run_job(known, folder, is_ours, job, progress);
  }
  place_.add_record(folder);
  place_.end(folder);
}

void Keeper::run_job(const Known& known, const std::string& folder, bool goes_on, const Job& job,
                     Progress& progress) {
  const fs::path output = place_.path() / folder;
  const RunOptions options{.threads = common_.threads,
                           .pack = args_.pack,
                           .force = place_.is_far() && goes_on,
                           .durable = true,
                           .verify_output = true,
                           .limit_rate = args_.limit_rate,
                           .resume = !place_.is_far()};
  RunStats stats;
  PlaceWatch watch(stop_, place_, progress);
  try {
    const cli::ProgressDisplay display(progress, common_);
    const cli::Writing writing;
    stats = dsckpt::run(job, output, options, progress, nullptr,
                        [&](const Folder& above) { place_.check_folder(above); });
  } catch (const InterruptedError&) {
    watch.end();
    if (!watch.is_lost()) throw;
    throw place_is_lost(output);
  }
  watch.end();
  if (!place_.is_same()) throw place_is_lost(output);
  ++kept_;
  for (const std::string& note : stats.notes) cli::note(app_, common_, note);
  const std::string step = known.step ? ", step " + std::to_string(*known.step) : "";
  const std::string stored =
      stats.bytes_stored == stats.bytes_written ? "" : " (" + human_bytes(stats.bytes_stored) + ")";
  nlohmann::json data = {{"event", "kept"},
                         {"name", known.seen.name},
                         {"output", output.string()},
                         {"step", nullptr},
                         {"how", how()},
                         {"bytes", stats.bytes_written},
                         {"bytes_stored", stats.bytes_stored},
                         {"bytes_verified", stats.bytes_verified},
                         {"bytes_kept", stats.bytes_kept},
                         {"seconds", stats.seconds}};
  if (known.step) data["step"] = *known.step;
  say_event(common_,
            known.seen.name + ": kept in " + shown_path(output) + step + ", " +
                human_bytes(stats.bytes_written) + stored + ", " + human_seconds(stats.seconds),
            std::move(data));
}

void Keeper::remove_by_policy(const std::vector<RunCheckpoint>& all) {
  if (!args_.policy.removes()) return;
  std::vector<PolicyCheckpoint> complete;
  const std::string metric = metric_name(args_.policy.best);
  for (const RunCheckpoint& each : all) {
    const Known& known = known_.at(each.name);
    if (!known.is_verified) continue;
    complete.push_back({.name = each.name, .step = known.step});
    if (!metric.empty()) complete.back().metric = run_.metric_of(each, metric);
  }
  const std::set<std::string> stay = staying(args_.policy, complete);
  for (const RunCheckpoint& each : all) {
    stop_if_asked();
    if (!known_.at(each.name).is_verified || stay.contains(each.name) || !is_safe(each)) continue;
    if (run_.latest() == each.name) continue;
    remove_one(each);
  }
}

void Keeper::remove_one(const RunCheckpoint& checkpoint) {
  Known& known = known_.at(checkpoint.name);
  const auto found =
      std::find_if(place_.records().begin(), place_.records().end(), [&](const auto& entry) {
        return entry.second.name == checkpoint.name && entry.second.files == checkpoint.files;
      });
  try {
    place_.check_is_safe(found->first);
    const Removal removal = [&] {
      const cli::Writing writing;
      return remove_checkpoint(run_, checkpoint,
                               [&](const RunCheckpoint& now) { return now.same_as(checkpoint); });
    }();
    if (!removal.note.empty()) return say_once(known, "stays", removal.note);
    if (!removal.done) return;
    ++removed_;
    say_event(common_, checkpoint.name + ": removed from the run",
              {{"event", "removed"}, {"name", checkpoint.name}});
  } catch (const IoError& error) {
    say_once(known, "stays", error.what());
    if (args_.once && !failure_) failure_ = error;
  }
}

}  // namespace dsckpt::pack
