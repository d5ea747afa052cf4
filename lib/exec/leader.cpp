#include "exec/leader.h"

#include <algorithm>
#include <chrono>
#include <exception>
#include <filesystem>
#include <map>
#include <mutex>
#include <set>
#include <thread>
#include <utility>

#include "base/bytes.h"
#include "base/kernels.h"
#include "dsckpt/error.h"
#include "exec/rank_words.h"
#include "exec/shares.h"

namespace dsckpt {
namespace {

using std::chrono::milliseconds;
using Clock = std::chrono::steady_clock;

constexpr milliseconds kPause{100};
// In which ranks that are alive let go of what they are at.
constexpr milliseconds kLongestStop{5000};

// The outputs of a part, as those of the whole plan.
class PartSink : public Sink {
 public:
  PartSink(const std::vector<OutputId>& outputs, Sink& target)
      : outputs_(outputs), target_(target) {}
  void write_at(OutputId out, uint64_t offset, std::span<const std::byte> bytes) override {
    target_.write_at(outputs_[out], offset, bytes);
  }
  void finish(OutputId out) override { target_.finish(outputs_[out]); }

 private:
  const std::vector<OutputId>& outputs_;
  Sink& target_;
};

class Leader {
 public:
  Leader(Group& group, const CopyPlan& plan, const InputFiles& inputs, const GroupWork& work,
         Progress& progress, const ExecOptions& options)
      : group_(group),
        plan_(plan),
        inputs_(inputs),
        work_(work),
        progress_(progress),
        options_(options),
        checks_(plan, options.records, options.check_all_records),
        units_(plan, checks_.extra_reads(), options.unit_bytes),
        cutter_(plan, units_, checks_.use(), options.unit_bytes),
        shares_(units_,
                options.from == nullptr ? std::span<const BatchRange>() : options.from->done,
                {.ranks = group.size(),
                 .cut_bytes = work.cut_bytes,
                 .whole_outputs = work.pack.has_value()}) {
    progress_.bytes_total = units_.bytes();
    if (options.from != nullptr) go_on_from(*options.from);
    reached_by_.resize(static_cast<size_t>(group.size()), 0);
    for (int rank = 0; rank < group.size(); ++rank) {
      ranks_.push_back({.host = group.member(rank).host});
    }
  }

  RunStats operator()() {
    const Clock::time_point start = Clock::now();
    tell_job();
    std::thread service([this] { serve(); });
    work_on_portions();
    service.join();
    if (!failures_.empty()) stop_and_throw();
    finish_outputs();
    checks_.verify(inputs_);

    RunStats stats;
    stats.bytes_written = plan_.bytes_written();
    stats.bytes_stored = work_.pack ? bytes_stored_ : stats.bytes_written;
    stats.bytes_read = bytes_read_;
    stats.records_checked = checks_.checked();
    stats.records_unchecked = checks_.unchecked();
    stats.seconds = std::chrono::duration<double>(Clock::now() - start).count();
    stats.ranks = ranks_;
    return stats;
  }

 private:
  void say(int rank, Word word, std::string bytes = {}) {
    group_.send(rank, static_cast<uint32_t>(word), std::move(bytes));
  }
  void say_to_all(Word word, const std::string& bytes = {}) {
    for (int rank = 1; rank < group_.size(); ++rank) say(rank, word, bytes);
  }

  void tell_job() {
    RankJob job{.place = work_.staged.place(),
                .options = portion_options(),
                .sync_portions = work_.sync_portions,
                .sync_last = work_.sync_last};
    job.place.files_in = std::filesystem::absolute(job.place.files_in);
    for (FileId file = 0; file < inputs_.size(); ++file) {
      const InputFile& input = inputs_[file];
      job.inputs.push_back({std::filesystem::absolute(input.path()).string(), input.display(),
                            input.stored_size(), input.modified()});
    }
    say_to_all(Word::job, job.encode());
  }

  PortionOptions portion_options() const {
    const auto ranks = static_cast<uint64_t>(group_.size());
    return {.threads = options_.threads,
            .limit_rate =
                options_.limit_rate == 0 ? 0 : std::max<uint64_t>(options_.limit_rate / ranks, 1),
            .pack = work_.pack,
            .sha256 = work_.sha256,
            .keep_sums = work_.sums != nullptr};
  }

  void go_on_from(const RunState& state) {
    check_reached(state, units_, options_.unit_bytes);
    done_ = state.done;
    for (const BatchRange& range : done_) done_before_ += units_.bytes_of(range);
    digests_ = state.digests;
    checks_.restore(state.records);
    bytes_read_ = state.bytes_read;
  }

  // Rank 0's own portions.
  void work_on_portions() {
    try {
      const PortionOptions options = portion_options();
      while (const std::optional<BatchRange> batches = take(0)) {
        Portion portion = cutter_.cut(*batches);
        portion.set_files(portion.part.files);
        PartSink sink(portion.part.outputs, work_.staged);
        absorb(0, run_portion(portion, inputs_, sink, own_, options));
      }
    } catch (const InterruptedError&) {
      // Because of another's failure, mostly.
      const std::lock_guard lock(mutex_);
      if (failures_.empty()) failures_.emplace(0, std::current_exception());
    } catch (...) {
      fail(0, std::current_exception());
    }
  }

  std::optional<BatchRange> take(int rank) {
    const std::lock_guard lock(mutex_);
    if (!failures_.empty()) return std::nullopt;
    const std::optional<BatchRange> batches = shares_.take(rank);
    if (batches) ++under_way_;
    return batches;
  }

  void absorb(int rank, const PortionResult& result) {
    const std::lock_guard lock(mutex_);
    --under_way_;
    RankStats& of_rank = ranks_[static_cast<size_t>(rank)];
    of_rank.bytes_read += result.sums.bytes_read;
    of_rank.bytes_done += units_.bytes_of(result.batches);
    const auto at = std::lower_bound(
        done_.begin(), done_.end(), result.batches,
        [](const BatchRange& a, const BatchRange& b) { return a.first < b.first; });
    done_.insert(at, result.batches);
    digests_.insert(digests_.end(), result.sums.digests.begin(), result.sums.digests.end());
    checks_.restore(result.sums.records);
    bytes_read_ += result.sums.bytes_read;
    bytes_stored_ += result.bytes_stored;
    if (work_.sums != nullptr) work_.sums->restore(result.written);
    if (options_.save && Clock::now() >= next_save_ && failures_.empty()) save();
  }

  // Under the mutex.
  void save() {
    const Clock::time_point begin = Clock::now();
    RunState state{.unit_bytes = options_.unit_bytes,
                   .bytes_read = bytes_read_,
                   .bytes_stored = bytes_stored_};
    for (const BatchRange& range : done_) {
      if (!state.done.empty() && state.done.back().last == range.first) {
        state.done.back().last = range.last;
      } else {
        state.done.push_back(range);
      }
    }
    join_pieces(digests_);
    state.digests = digests_;
    state.records = checks_.reported();
    options_.save(state);
    const Clock::time_point end = Clock::now();
    next_save_ =
        end + std::max<Clock::duration>(options_.save_every, options_.save_pause * (end - begin));
  }

  void fail(int rank, std::exception_ptr failure) {
    const std::lock_guard lock(mutex_);
    failures_.emplace(rank, std::move(failure));
    own_.cancelled = true;
  }

  bool is_over() {
    const std::lock_guard lock(mutex_);
    return !failures_.empty() || (under_way_ == 0 && shares_.portions_left() == 0 &&
                                  left_.size() == static_cast<size_t>(group_.size()) - 1);
  }

  // Answers the others until all is done, or somebody has failed.
  void serve() {
    while (!is_over()) {
      try {
        if (const std::optional<Message> message = group_.receive(kPause)) take_message(*message);
      } catch (...) {
        fail(0, std::current_exception());
      }
      show_progress();
    }
  }

  void show_progress() {
    if (progress_.cancelled) fail(0, std::make_exception_ptr(InterruptedError()));
    uint64_t sum = done_before_ + own_.bytes_done;
    for (const uint64_t bytes : reached_by_) sum += bytes;
    progress_.bytes_done = sum;
  }

  void take_message(const Message& message) {
    switch (static_cast<Word>(message.kind)) {
      case Word::want:
        if (const std::optional<BatchRange> batches = take(message.from)) {
          say(message.from, Word::portion, cutter_.cut(*batches).encode());
        } else {
          say(message.from, Word::no_portion);
        }
        return;
      case Word::done:
        return absorb(message.from, PortionResult::decode(message.bytes));
      case Word::progress:
        reached_by_[static_cast<size_t>(message.from)] = decode_number(message.bytes);
        return;
      case Word::left:
        left_.insert(message.from);
        return;
      case Word::stopped:
        stopped_.insert(message.from);
        return;
      case Word::failed:
        try {
          throw_failure(message.bytes, group_.member(message.from).name());
        } catch (...) {
          fail(message.from, std::current_exception());
        }
        return;
      default:
        throw CorruptError({}, group_.member(message.from).name() + " said what nobody expects");
    }
  }

  [[noreturn]] void stop_and_throw() {
    say_to_all(Word::stop);
    const Clock::time_point deadline = Clock::now() + kLongestStop;
    const auto is_waited_for = [&] {
      for (int rank = 1; rank < group_.size(); ++rank) {
        if (!stopped_.contains(rank) && !group_.is_lost(rank)) return true;
      }
      return false;
    };
    while (is_waited_for() && Clock::now() < deadline) {
      try {
        if (const std::optional<Message> message = group_.receive(kPause)) {
          // Of several that have failed meanwhile the first one is named.
          if (static_cast<Word>(message->kind) != Word::want) take_message(*message);
        }
      } catch (...) {  // one is lost; the rest may still answer
        std::this_thread::sleep_for(kPause);
      }
    }
    std::rethrow_exception(failures_.begin()->second);
  }

  // Checksums of outputs that several ranks have written.
  void finish_outputs() {
    Sink& sink = work_.sums != nullptr ? static_cast<Sink&>(*work_.sums) : work_.staged;
    for (OutputId out = 0; out < plan_.outputs().size(); ++out) {
      if (plan_.outputs()[out].size == 0 && options_.from == nullptr) sink.finish(out);
    }
    join_pieces(digests_);
    std::set<OutputId> patched;
    for (const DigestPiece& piece : digests_) {
      const Digest& digest = plan_.digests()[piece.digest];
      if (piece.begin != digest.begin || piece.size != digest.end - digest.begin) {
        throw std::logic_error("a checksum that lacks a part");
      }
      std::byte bytes[sizeof piece.crc];
      store_le(bytes, piece.crc);
      for (const uint64_t patch : digest.patches) sink.write_at(digest.out, patch, bytes);
      patched.insert(digest.out);
    }
    for (const OutputId out : patched) sink.finish(out);
  }

  Group& group_;
  const CopyPlan& plan_;
  const InputFiles& inputs_;
  const GroupWork& work_;
  Progress& progress_;
  const ExecOptions& options_;
  Progress own_;  // of this rank's portions
  RecordChecks checks_;
  const Units units_;
  const PortionCutter cutter_;
  uint64_t done_before_ = 0;  // bytes, by the run that this one goes on with

  // The service's.
  std::vector<uint64_t> reached_by_;
  std::set<int> left_;
  std::set<int> stopped_;

  std::mutex mutex_;  // of what follows
  Shares shares_;
  size_t under_way_ = 0;  // portions
  std::vector<RankStats> ranks_;
  std::vector<BatchRange> done_;
  std::vector<DigestPiece> digests_;
  uint64_t bytes_read_ = 0;
  uint64_t bytes_stored_ = 0;
  Clock::time_point next_save_ = Clock::now() + options_.save_every;
  std::map<int, std::exception_ptr> failures_;
};

}  // namespace

RunStats execute_in_group(Group& group, const CopyPlan& plan, const InputFiles& inputs,
                          const GroupWork& work, Progress& progress, const ExecOptions& options) {
  return Leader(group, plan, inputs, work, progress, options)();
}

}  // namespace dsckpt
