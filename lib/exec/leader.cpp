#include "exec/leader.h"

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <map>
#include <optional>
#include <set>
#include <stdexcept>
#include <string>
#include <utility>

#include "exec/dispatch.h"
#include "exec/packed_output.h"
#include "exec/patches.h"
#include "exec/rank_words.h"
#include "exec/shares.h"

namespace dsckpt {
namespace {

using Clock = std::chrono::steady_clock;

class Leader : public SharedWork {
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
        cutter_(plan, units_, checks_.use(), options.unit_bytes) {
    progress_.bytes_total = units_.bytes();
    for (FileId file = 0; file < inputs_.size(); ++file) inputs_[file].read_exactly();
    if (options.from != nullptr) go_on_from(*options.from);
  }

  RunStats operator()() {
    const Clock::time_point start = Clock::now();
    const RankJob job = this->job();
    ShareOptions options{.ranks = group_.size(),
                         .cut_bytes = work_.cut_bytes,
                         .whole_outputs = work_.pack.has_value()};
    if (group_.files()) options.owner = [&](uint64_t batch) { return owner_of(job, batch); };
    Shares shares(units_, done_, options);
    finish_empty_outputs();
    RunStats stats;
    stats.ranks = dispatch(group_, job, shares, *this, progress_);
    finish_shared_outputs();
    checks_.verify(inputs_);

    stats.bytes_written = plan_.bytes_written();
    stats.bytes_stored = work_.pack ? bytes_stored_ : stats.bytes_written;
    stats.bytes_read = bytes_read_;
    stats.records_checked = checks_.checked();
    stats.records_unchecked = checks_.unchecked();
    stats.seconds = std::chrono::duration<double>(Clock::now() - start).count();
    return stats;
  }

  std::string task(const BatchRange& batches) const override {
    return cutter_.cut(batches).encode();
  }

  void work_here(const Take& take, const OnDone& done, Progress& progress) override {
    const auto next = [&]() -> std::optional<PortionTask> {
      const std::optional<BatchRange> batches = take();
      if (!batches) return std::nullopt;
      Portion portion = cutter_.cut(*batches);
      InputFiles inputs = inputs_.selected(portion.part.files);
      return PortionTask{std::move(portion), std::move(inputs)};
    };
    run_staged_portions(work_.staged.place(), portion_options(), progress, next,
                        [&](const PortionResult& result) { done(result.encode()); });
  }

  Done absorb(std::string_view bytes) override {
    const PortionResult result = PortionResult::decode(bytes);
    const auto at = std::lower_bound(
        done_.begin(), done_.end(), result.batches,
        [](const BatchRange& a, const BatchRange& b) { return a.first < b.first; });
    done_.insert(at, result.batches);
    digests_.insert(digests_.end(), result.sums.digests.begin(), result.sums.digests.end());
    checks_.restore(result.sums.records);
    bytes_read_ += result.sums.bytes_read;
    bytes_stored_ += result.bytes_stored;
    if (work_.sums != nullptr) work_.sums->restore(result.written);
    if (options_.save && Clock::now() >= next_save_) save();
    return {units_.bytes_of(result.batches), result.sums.bytes_read};
  }

 private:
  RankJob job() const {
    RankJob job{.place = work_.staged.place(),
                .options = portion_options(),
                .sync_portions = work_.sync_portions,
                .sync_last = work_.sync_last};
    job.place.path = std::filesystem::absolute(job.place.path);
    job.add_inputs(inputs_);
    return job;
  }

  // The rank that has the file which most bytes of a batch come from.
  int owner_of(const RankJob& job, uint64_t batch) const {
    std::map<int, uint64_t> bytes;
    for (const PlanUnit& unit : units_.batch(batch)) {
      if (unit.out == PlanUnit::kNoOutput) {
        bytes[job.inputs[checks_.extra_reads()[unit.item].extent.file].owner] += unit.end;
        continue;
      }
      for (size_t i = unit.item; i < plan_.items().size(); ++i) {
        const CopyItem& item = plan_.items()[i];
        if (item.out != unit.out || item.dst >= unit.end) break;
        const uint64_t size = std::min(item.dst_end(), unit.end) - std::max(item.dst, unit.begin);
        plan_.for_each_source(
            item, [&](const Rows& rows, uint64_t) { bytes[job.inputs[rows.file].owner] += size; });
      }
    }
    const auto most =
        std::max_element(bytes.begin(), bytes.end(),
                         [](const auto& a, const auto& b) { return a.second < b.second; });
    return most == bytes.end() ? 0 : most->first;
  }

  PortionOptions portion_options() const {
    return {.threads = options_.threads,
            .limit_rate = rate_of_rank(options_.limit_rate, group_.size()),
            .pack = work_.pack,
            .sha256 = work_.sha256,
            .keep_sums = work_.sums != nullptr};
  }

  void go_on_from(const RunState& state) {
    check_reached(state, units_, options_.unit_bytes);
    done_ = state.done;
    for (const BatchRange& range : done_) progress_.bytes_done += units_.bytes_of(range);
    digests_ = state.digests;
    checks_.restore(state.records);
    bytes_read_ = state.bytes_read;
  }

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

  Sink& sink() const {
    return work_.sums != nullptr ? static_cast<Sink&>(*work_.sums) : work_.staged;
  }

  // They are in no portion; a run that goes on has them from the one that began.
  void finish_empty_outputs() {
    if (options_.from != nullptr) return;
    std::optional<PackedOutput> packed;
    if (work_.pack) packed.emplace(plan_, sink(), *work_.pack, work_.sha256);
    Sink& front = packed ? static_cast<Sink&>(*packed) : sink();
    for (OutputId out = 0; out < plan_.outputs().size(); ++out) {
      if (plan_.outputs()[out].size == 0) front.finish(out);
    }
    if (packed) bytes_stored_ += packed->bytes_stored();
  }

  // Checksums of outputs that several ranks have written.
  void finish_shared_outputs() {
    join_pieces(digests_);
    std::set<OutputId> shared;
    for (const DigestPiece& piece : digests_) {
      const Digest& digest = plan_.digests()[piece.digest];
      if (piece.begin != digest.begin || piece.size != digest.end - digest.begin) {
        throw std::logic_error("a checksum that lacks a part");
      }
      write_left_out(units_, digest, piece.crc, sink());
      shared.insert(digest.out);
    }
    for (const OutputId out : shared) sink().finish(out);
  }

  Group& group_;
  const CopyPlan& plan_;
  const InputFiles& inputs_;
  const GroupWork& work_;
  Progress& progress_;
  const ExecOptions& options_;
  RecordChecks checks_;
  const Units units_;
  const PortionCutter cutter_;

  std::vector<BatchRange> done_;
  std::vector<DigestPiece> digests_;
  uint64_t bytes_read_ = 0;
  uint64_t bytes_stored_ = 0;
  Clock::time_point next_save_ = Clock::now() + options_.save_every;
};

}  // namespace

RunStats execute_in_group(Group& group, const CopyPlan& plan, const InputFiles& inputs,
                          const GroupWork& work, Progress& progress, const ExecOptions& options) {
  return Leader(group, plan, inputs, work, progress, options)();
}

}  // namespace dsckpt
