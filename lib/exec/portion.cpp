#include "exec/portion.h"

#include <algorithm>
#include <condition_variable>
#include <mutex>
#include <numeric>
#include <utility>

#include "dsckpt/error.h"
#include "exec/patches.h"
#include "exec/staging_sinks.h"
#include "exec/workers.h"

namespace dsckpt {
namespace {

using Written = OutputSums::State::Written;

void code_plan(VarintWriter& writer, const CopyPlan& plan) {
  write_plan(writer, plan);
}
void code_plan(VarintReader& reader, CopyPlan& plan) {
  plan = read_plan(reader);
}

void code_portion(auto& codec, auto& portion) {
  codec(portion.batches.first, portion.batches.last, portion.unit_bytes, portion.cut.begin,
        portion.cut.end);
  code_plan(codec, portion.part.plan);
  codec.rising(portion.part.outputs);
  codec.rising(portion.part.files);
  codec.rising(portion.part.digests);
  codec.rising(portion.use.of_item);
  codec.rising(portion.use.of_operand);
  codec.rising(portion.records);
  codec(portion.use.extra_reads);
}

void code_result(auto& codec, auto& result) {
  codec(result.batches.first, result.batches.last, result.sums.bytes_read, result.bytes_stored);
  codec.rows(result.sums.digests, &DigestPiece::digest, &DigestPiece::begin, &DigestPiece::size,
             &DigestPiece::crc);
  codec.rows(result.sums.records, &RecordPiece::record, &RecordPiece::offset, &RecordPiece::size,
             &RecordPiece::crc);
  codec.rows(result.written.written, &Written::out, &Written::offset, &Written::size,
             &Written::crc);
  codec(result.sent);
}

// Throws if a number in it is of something that it does not have.
void check(const Portion& portion) {
  const PlanPart& part = portion.part;
  const RecordUse& use = portion.use;
  const auto is_record = [&](uint32_t record) { return record < portion.records.size(); };
  const auto may_be_record = [&](uint32_t record) {
    return record == RecordUse::kNone || is_record(record);
  };
  bool right = part.outputs.size() == part.plan.outputs().size() &&
               part.digests.size() == part.plan.digests().size() &&
               use.of_item.size() == part.plan.items().size() &&
               use.of_operand.size() == part.plan.operands().size() &&
               std::all_of(use.of_item.begin(), use.of_item.end(), may_be_record) &&
               std::all_of(use.of_operand.begin(), use.of_operand.end(), may_be_record);
  for (const RecordUse::ExtraRead& read : use.extra_reads) {
    right = right && is_record(read.record) && read.extent.file < part.files.size();
  }
  for (const CopyItem& item : part.plan.items()) {
    part.plan.for_each_source(
        item, [&](const Rows& rows, uint64_t) { right = right && rows.file < part.files.size(); });
  }
  if (!right) throw CorruptError({}, "a portion that names missing members");
}

}  // namespace

PortionCutter::PortionCutter(const CopyPlan& plan, const Units& units, const RecordUse& use,
                             uint64_t unit_bytes)
    : plan_(plan), units_(units), use_(use), unit_bytes_(unit_bytes) {
  digests_.resize(plan.digests().size());
  std::iota(digests_.begin(), digests_.end(), uint64_t{0});
  std::stable_sort(digests_.begin(), digests_.end(), [&](uint64_t a, uint64_t b) {
    return plan.digests()[a].out < plan.digests()[b].out;
  });
}

Portion PortionCutter::cut(const BatchRange& batches) const {
  Portion portion{.batches = batches, .unit_bytes = unit_bytes_};
  size_t first_item = plan_.items().size();
  size_t last_item = 0;
  const PlanUnit* first = nullptr;
  const PlanUnit* last = nullptr;
  for (uint64_t batch = batches.first; batch < batches.last; ++batch) {
    for (const PlanUnit& unit : units_.batch(batch)) {
      if (unit.out == PlanUnit::kNoOutput) {
        // Pieces of one range follow each other.
        const RecordUse::ExtraRead& extra = use_.extra_reads[unit.item];
        const Extent piece{extra.extent.file, extra.extent.offset + unit.skip, unit.end};
        std::vector<RecordUse::ExtraRead>& reads = portion.use.extra_reads;
        if (!reads.empty() && reads.back().record == extra.record &&
            reads.back().extent.file == piece.file && reads.back().extent.end() == piece.offset) {
          reads.back().extent.size += piece.size;
        } else {
          reads.push_back({extra.record, piece});
        }
        continue;
      }
      if (first == nullptr) first = &unit;
      last = &unit;
      first_item = std::min(first_item, unit.item);
    }
  }
  if (first != nullptr) {
    portion.cut = {first->begin, last->end};
    last_item = last->item;
    while (last_item < plan_.items().size() && plan_.items()[last_item].out == last->out &&
           plan_.items()[last_item].dst < last->end) {
      ++last_item;
    }
    add_outputs(portion, first_item, last_item);
  }
  add_records(portion, first_item);
  return portion;
}

void PortionCutter::add_outputs(Portion& portion, size_t first_item, size_t last_item) const {
  const OutputId first = plan_.items()[first_item].out;
  const OutputId last = plan_.items()[last_item - 1].out;
  const auto of = [&](uint64_t digest) { return plan_.digests()[digest].out; };
  const auto begin = std::partition_point(digests_.begin(), digests_.end(),
                                          [&](uint64_t digest) { return of(digest) < first; });
  std::vector<uint64_t> digests;
  for (auto at = begin; at != digests_.end() && of(*at) <= last; ++at) {
    const Digest& digest = plan_.digests()[*at];
    // The outputs at the ends have only the part that lies in the portion.
    const uint64_t from = digest.out == first ? portion.cut.begin : 0;
    const uint64_t to = digest.out == last ? portion.cut.end : ~uint64_t{0};
    const auto inside = [&](uint64_t place) { return from < place + kPatchBytes && place < to; };
    if ((digest.begin < to && from < digest.end) || digest.begin == digest.end ||
        std::any_of(digest.patches.begin(), digest.patches.end(), inside)) {
      digests.push_back(*at);
    }
  }
  portion.part = part_of(plan_, first_item, last_item, digests);
}

void PortionCutter::add_records(Portion& portion, size_t first_item) const {
  Renumbering<uint32_t> renumbered(portion.records);
  const auto number = [&](uint32_t record) {
    return record == RecordUse::kNone ? record : renumbered(record);
  };
  for (size_t i = 0; i < portion.part.plan.items().size(); ++i) {
    portion.use.of_item.push_back(number(use_.of_item[first_item + i]));
  }
  for (const uint32_t operand : portion.part.operands) {
    portion.use.of_operand.push_back(number(use_.of_operand[operand]));
  }
  Renumbering<FileId> file(portion.part.files);
  for (RecordUse::ExtraRead& read : portion.use.extra_reads) {
    read.record = number(read.record);
    read.extent.file = file(read.extent.file);
  }
}

std::string Portion::encode() const {
  VarintWriter writer;
  code_portion(writer, *this);
  return writer.take();
}

Portion Portion::decode(std::string_view bytes) {
  VarintReader reader(bytes);
  Portion portion;
  code_portion(reader, portion);
  check(portion);
  return portion;
}

std::string PortionResult::encode() const {
  VarintWriter writer;
  code_result(writer, *this);
  return writer.take();
}

PortionResult PortionResult::decode(std::string_view bytes) {
  VarintReader reader(bytes);
  PortionResult result;
  code_result(reader, result);
  return result;
}

PortionRun::PortionRun(
    Portion portion, InputFiles inputs,
    const std::function<std::unique_ptr<StagingSink>(const PlanPart&)>& make_sink, RateLimit& limit,
    Progress& progress, const PortionOptions& options)
    : portion_(std::move(portion)),
      inputs_(std::move(inputs)),
      sink_(make_sink(portion_.part)),
      checks_(portion_.use, portion_.records.size()) {
  const CopyPlan& plan = portion_.part.plan;
  Sink* front = sink_.get();
  if (options.keep_sums) {
    front = &sums_.emplace(plan, *front);
  }
  if (options.pack) {
    std::vector<std::optional<Sha256Digest>> sha256;
    for (const OutputId out : portion_.part.outputs) {
      if (!options.sha256.empty()) sha256.push_back(options.sha256.at(out));
    }
    front = &packed_.emplace(plan, *front, *options.pack, std::move(sha256));
  }
  run_.emplace(plan, portion_.cut, portion_.unit_bytes, checks_, inputs_, *front, limit, progress);
}

void PortionRun::work() {
  run_->work();
}
void PortionRun::stop() {
  run_->stop();
}

PortionResult PortionRun::result() {
  PortionResult result{.batches = portion_.batches, .sums = run_->sums()};
  if (sums_) result.written = sums_->state();
  if (packed_) result.bytes_stored = packed_->bytes_stored();
  result.sent = sink_->end();

  const PlanPart& part = portion_.part;
  for (DigestPiece& piece : result.sums.digests) piece.digest = part.digests[piece.digest];
  for (RecordPiece& piece : result.sums.records) piece.record = portion_.records[piece.record];
  for (auto& piece : result.written.written) piece.out = part.outputs[piece.out];
  for (SentPart& sent : result.sent.sent) sent.out = part.outputs[sent.out];
  for (LeftBytes& left : result.sent.left) left.out = part.outputs[left.out];
  return result;
}

namespace {

class PortionFlow {
 public:
  PortionFlow(const std::function<std::unique_ptr<PortionRun>()>& next,
              const std::function<void(PortionResult)>& done, const OnPortionFailed& failed)
      : next_(next), done_(done), failed_(failed) {}

  // By every thread.
  void work() {
    try {
      while (const std::shared_ptr<Active> active = enter()) {
        run(*active->run);
        if (leave(active)) done_(active->run->result());
      }
    } catch (...) {
      stop();
      throw;
    }
  }

 private:
  struct Active {
    explicit Active(std::unique_ptr<PortionRun> portion) : run(std::move(portion)) {}
    std::unique_ptr<PortionRun> run;
    size_t threads = 0;  // that work on it
  };

  void run(PortionRun& portion) {
    try {
      portion.work();
    } catch (const InterruptedError&) {
      throw;
    } catch (const std::exception& failure) {
      if (failed_) failed_(portion.batches(), failure);
      throw;
    }
  }

  // Returns the portion to work on; nullptr if there is none any more.
  std::shared_ptr<Active> enter() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return stopped_ || is_over_ || current_ || !is_next_wanted_; });
    if (!stopped_ && !is_over_ && !current_) {
      is_next_wanted_ = true;
      lock.unlock();
      std::unique_ptr<PortionRun> run = next_();
      lock.lock();
      is_next_wanted_ = false;
      if (run) {
        current_ = active_.emplace_back(std::make_shared<Active>(std::move(run)));
      } else {
        is_over_ = true;
      }
      changed_.notify_all();
    }
    if (stopped_ || !current_) return nullptr;
    ++current_->threads;
    return current_;
  }

  // Returns whether that was the last one.
  bool leave(const std::shared_ptr<Active>& active) {
    const std::lock_guard lock(mutex_);
    if (current_ == active) current_.reset();
    if (--active->threads > 0 || stopped_) return false;
    std::erase(active_, active);
    return true;
  }

  void stop() {
    const std::lock_guard lock(mutex_);
    stopped_ = true;
    for (const auto& active : active_) active->run->stop();
    changed_.notify_all();
  }

  const std::function<std::unique_ptr<PortionRun>()>& next_;
  const std::function<void(PortionResult)>& done_;
  const OnPortionFailed& failed_;

  std::mutex mutex_;  // guards what follows
  std::condition_variable changed_;
  std::vector<std::shared_ptr<Active>> active_;
  std::shared_ptr<Active> current_;  // which may have something left to begin
  bool is_next_wanted_ = false;      // a thread waits for it
  bool is_over_ = false;
  bool stopped_ = false;
};

}  // namespace

void run_portions(unsigned threads, const std::function<std::unique_ptr<PortionRun>()>& next,
                  const std::function<void(PortionResult)>& done, const OnPortionFailed& failed) {
  PortionFlow flow(next, done, failed);
  run_workers(threads, [&] { flow.work(); });
}

void run_staged_portions(const StagingPlace& place, const PortionOptions& options,
                         Progress& progress,
                         const std::function<std::optional<PortionTask>()>& next,
                         const std::function<void(PortionResult)>& done,
                         const OnPortionFailed& failed) {
  RateLimit limit(options.limit_rate, progress.cancelled);
  const std::unique_ptr<StagingSinks> sinks = sinks_at(place);
  const auto make_sink = [&](const PlanPart& part) { return sinks->of(part); };
  const auto next_run = [&]() -> std::unique_ptr<PortionRun> {
    std::optional<PortionTask> task = next();
    if (!task) return nullptr;
    return std::make_unique<PortionRun>(std::move(task->portion), std::move(task->inputs),
                                        make_sink, limit, progress, options);
  };
  run_portions(options.threads, next_run, done, failed);
}

}  // namespace dsckpt
