#include "exec/executor.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <optional>
#include <set>
#include <utility>

#include "base/kernels.h"
#include "base/rate_limit.h"
#include "dsckpt/error.h"
#include "exec/announced_reads.h"
#include "exec/item_reader.h"
#include "exec/patches.h"
#include "exec/record_checks.h"
#include "exec/workers.h"
#include "io/output_file.h"
#include "io/page_buffer.h"

namespace dsckpt {
namespace {

constexpr uint64_t kPage = OutputFile::kDirectBlock;

}  // namespace

// The run of a part of a plan, or of all of it.
class PlanRun {
 public:
  PlanRun(const CopyPlan& plan, const OutputCut& cut, RecordChecks& checks,
          const InputFiles& inputs, Sink& sink, RateLimit& limit, Progress& progress,
          const ExecOptions& options)
      : plan_(plan),
        cut_(cut),
        inputs_(inputs),
        sink_(sink),
        progress_(progress),
        options_(options),
        unit_bytes_(options.unit_bytes),
        limit_(limit),
        checks_(checks),
        units_(plan, checks.extra_reads(), options.unit_bytes, cut) {
    for (size_t i = 0; i < plan.outputs().size(); ++i) outputs_.emplace_back();
    for (size_t i = 0; i < plan.digests().size(); ++i) {
      const Digest& digest = plan.digests()[i];
      outputs_[digest.out].digests.push_back(i);
      for (const uint64_t offset : digest.patches) places_.push_back({digest.out, offset, i});
    }
    std::sort(places_.begin(), places_.end(), [](const Place& a, const Place& b) {
      return std::pair(a.out, a.offset) < std::pair(b.out, b.offset);
    });
    for (OutputState& output : outputs_) {
      std::sort(output.digests.begin(), output.digests.end(), [&](size_t a, size_t b) {
        const Digest& x = plan.digests()[a];
        const Digest& y = plan.digests()[b];
        return std::pair(x.begin, x.end) < std::pair(y.begin, y.end);
      });
    }
    for (const PlanUnit& unit : units_.all()) {
      if (unit.out != PlanUnit::kNoOutput) ++outputs_[unit.out].units_left;
    }
    if (!plan.outputs().empty()) {
      outputs_.front().is_whole = cut.begin == 0;
      outputs_.back().is_whole = outputs_.back().is_whole && cut.end >= plan.outputs().back().size;
    }
    if (options.from != nullptr) go_on_from(*options.from);
    ahead_.emplace(plan, units_, checks.extra_reads(), inputs, done_, limit.rate());
  }

  uint64_t bytes() const { return units_.bytes(); }

  // Before work().
  void begin() {
    for (OutputId out = 0; out < outputs_.size(); ++out) {
      if (options_.from == nullptr && plan_.outputs()[out].size == 0) sink_.finish(out);
      // Several ranks have written all of it, and were stopped before one had all checksums.
      const OutputState& output = outputs_[out];
      if (output.units_left == 0 && !output.pieces.empty()) finish(out);
    }
  }

  // The units are taken in order, so that outputs grow from front to back whatever the threads do.
  void work() {
    try {
      Worker worker(*this);
      while (const std::optional<size_t> batch = begin_batch()) {
        worker.pieces.clear();
        for (const PlanUnit& unit : units_.batch(*batch)) {
          if (progress_.cancelled) throw InterruptedError();
          if (failed_) return;
          limit_.take(unit.end - unit.begin);
          ahead_->begin(unit);
          if (unit.out == PlanUnit::kNoOutput) {
            read_extra(unit, worker);
            ahead_->end(unit);
          } else {
            const std::vector<DigestPiece> pieces = read(unit, worker);
            ahead_->end(unit);  // a sink may take a second
            write(unit, worker, pieces);
          }
        }
        end_batch(std::exchange(worker.bytes_read, 0));
      }
    } catch (...) {
      fail();
      throw;
    }
  }

  void fail() {
    {
      const std::lock_guard lock(mutex_);
      failed_ = true;
    }
    changed_.notify_all();
  }

  // After that.
  uint64_t bytes_read() const { return bytes_read_; }
  std::vector<DigestPiece> unfinished_digests() {
    std::vector<DigestPiece> all;
    for (OutputState& output : outputs_) {
      join_pieces(output.pieces);
      all.insert(all.end(), output.pieces.begin(), output.pieces.end());
      all.insert(all.end(), output.known.begin(), output.known.end());
    }
    return all;
  }

 private:
  // The place of a digest of the plan.
  struct Place {
    OutputId out;
    uint64_t offset;
    size_t digest;
  };

  // One output on its way: how many units are left, and what its digests are made of.
  struct OutputState {
    std::atomic<uint64_t> units_left{0};
    bool is_whole = true;         // all of it is in this run
    std::vector<size_t> digests;  // indices into the plan's, in the order of their ranges
    std::mutex mutex;
    std::vector<DigestPiece> pieces;
    std::vector<DigestPiece> known = {};  // whole digests, of an output that others write, too
    std::set<size_t> given;  // of `digests`, those that the sink has; no piece is of them
  };

  // The tools of one thread.
  struct Worker {
    // An element that lies across the end of a unit may move both its ends.
    explicit Worker(PlanRun& run) : Worker(run, ItemReader::piece_bytes(run.unit_bytes_)) {}
    Worker(PlanRun& run, uint64_t piece_bytes)
        : buffer(std::max(run.unit_bytes_ + 2 * kPage, piece_bytes)),
          reader(run.plan_, run.inputs_, run.checks_, run.factors_, piece_bytes) {}
    PageBuffer buffer;
    ItemReader reader;
    std::vector<DigestPiece> pieces;  // of the batch, in the order of the output
    uint64_t bytes_read = 0;
  };

  void go_on_from(const RunState& state) {
    check_reached(state, units_, unit_bytes_);
    for (const BatchRange& range : state.done) {
      for (uint64_t batch = range.first; batch < range.last; ++batch) {
        for (const PlanUnit& unit : units_.batch(batch)) {
          if (unit.out != PlanUnit::kNoOutput) --outputs_[unit.out].units_left;
        }
      }
      progress_.bytes_done += units_.bytes_of(range);
    }
    done_ = state.done;
    next_ = saved_ = skip_done(0);
    for (const DigestPiece& piece : state.digests) {
      if (piece.digest >= plan_.digests().size()) throw CorruptError({}, "an unknown digest");
      outputs_[plan_.digests()[piece.digest].out].pieces.push_back(piece);
    }
    checks_.restore(state.records);
    bytes_read_ = state.bytes_read;
  }

  // The first batch from `batch` on that no run before has done.
  uint64_t skip_done(uint64_t batch) const {
    for (const BatchRange& range : done_) {
      if (range.first <= batch && batch < range.last) batch = range.last;
    }
    return batch;
  }

  // Returns the progress. No batch may be under way.
  RunState state() {
    RunState state{.unit_bytes = unit_bytes_, .bytes_read = bytes_read_};
    // Batches are taken in their order: all before the next one are done, and what another run has
    // done behind it.
    if (next_ > 0) state.done.push_back({0, next_});
    for (const BatchRange& range : done_) {
      if (range.first > next_) state.done.push_back(range);
    }
    state.digests = unfinished_digests();
    state.records = checks_.reported();
    return state;
  }

  bool is_time_to_save() const {
    if (!options_.save || next_ == saved_ || std::chrono::steady_clock::now() < next_save_)
      return false;
    if (!options_.save_between_outputs) return true;
    const OutputId out = units_.batch(next_).front().out;
    return next_ == 0 || out == PlanUnit::kNoOutput || out != units_.batch(next_ - 1).front().out;
  }

  void save() {
    const auto begin = std::chrono::steady_clock::now();
    options_.save(state());
    saved_ = next_;
    const auto end = std::chrono::steady_clock::now();
    next_save_ = end + std::max<std::chrono::steady_clock::duration>(
                           options_.save_every, options_.save_pause * (end - begin));
  }

  // The next batch; nothing if there is none, or another thread has failed.
  std::optional<size_t> begin_batch() {
    std::unique_lock lock(mutex_);
    while (!failed_ && next_ < units_.batches() && is_time_to_save()) {
      if (under_way_ == 0) {
        save();
      } else {
        changed_.wait(lock);
      }
    }
    if (failed_ || next_ == units_.batches()) return std::nullopt;
    ++under_way_;
    return std::exchange(next_, skip_done(next_ + 1));
  }

  void end_batch(uint64_t bytes_read) {
    {
      const std::lock_guard lock(mutex_);
      --under_way_;
      bytes_read_ += bytes_read;
    }
    changed_.notify_all();
  }

  void read_extra(const PlanUnit& unit, Worker& worker) {
    const RecordChecks::ExtraRead& extra = checks_.extra_reads()[unit.item];
    const Extent extent{extra.extent.file, extra.extent.offset + unit.skip, unit.end};
    const std::span<std::byte> bytes = worker.buffer.bytes().first(extent.size);
    inputs_[extent.file].read_at(extent.offset, bytes);
    checks_.report(extra.record, extent, crc32(0, bytes));
    progress_.bytes_done += extent.size;
    worker.bytes_read += extent.size;
  }

  // Returns the bytes of a unit in the worker's buffer.
  static std::span<std::byte> bytes_of(const PlanUnit& unit, Worker& worker) {
    return worker.buffer.bytes().subspan(unit.begin % kPage, unit.end - unit.begin);
  }

  std::vector<DigestPiece> read(const PlanUnit& unit, Worker& worker) {
    const OutputState& output = outputs_[unit.out];
    const std::span<std::byte> bytes = bytes_of(unit, worker);
    std::vector<DigestPiece> pieces;
    uint64_t skip = unit.skip;
    size_t digest = first_digest(output, unit.begin);
    size_t index = unit.item;
    for (uint64_t at = unit.begin; at < unit.end; ++index) {
      const uint64_t size = std::min(plan_.items()[index].dst_end(), unit.end) - at;
      while (digest < output.digests.size() && plan_.digests()[output.digests[digest]].end <= at) {
        ++digest;
      }
      const bool digested =
          digest < output.digests.size() && plan_.digests()[output.digests[digest]].begin <= at;
      uint32_t crc = 0;
      worker.bytes_read += worker.reader.read(index, skip, bytes.subspan(at - unit.begin, size),
                                              digested ? &crc : nullptr);
      if (digested) append_piece(pieces, {output.digests[digest], at, size, crc});
      at += size;
      skip = 0;
    }
    return pieces;
  }

  void write(const PlanUnit& unit, Worker& worker, const std::vector<DigestPiece>& pieces) {
    const std::span<std::byte> bytes = bytes_of(unit, worker);
    for (const DigestPiece& piece : pieces) append_piece(worker.pieces, piece);
    uint64_t written = unit.begin;
    const auto write_up_to = [&](uint64_t end) {
      if (end == written) return;
      sink_.write_at(unit.out, written, bytes.subspan(written - unit.begin, end - written));
    };
    for (auto place = first_place(unit);
         place != places_.end() && place->out == unit.out && place->offset < unit.end; ++place) {
      const uint64_t begin = std::max(place->offset, unit.begin);
      const uint64_t end = std::min(place->offset + kPatchBytes, unit.end);
      if (is_known(units_, plan_.digests()[place->digest], unit)) {
        const PatchBytes value = patch_bytes(known_crc(worker, place->digest));
        std::copy_n(value.data() + (begin - place->offset), end - begin,
                    bytes.data() + (begin - unit.begin));
      } else {
        write_up_to(begin);
        written = end;
      }
    }
    write_up_to(unit.end);
    if (!pieces.empty()) add(unit.out, pieces);
    if (--outputs_[unit.out].units_left == 0) finish(unit.out);
    progress_.bytes_done += bytes.size();
  }

  // The first place that ends in `unit` or behind it.
  std::vector<Place>::const_iterator first_place(const PlanUnit& unit) const {
    return std::partition_point(places_.begin(), places_.end(), [&](const Place& place) {
      return place.out < unit.out ||
             (place.out == unit.out && place.offset + kPatchBytes <= unit.begin);
    });
  }

  // Returns the CRC32 of a digest that is_known() in the worker's batch.
  uint32_t known_crc(const Worker& worker, size_t digest) const {
    const uint64_t begin = plan_.digests()[digest].begin;
    const auto piece =
        std::partition_point(worker.pieces.begin(), worker.pieces.end(),
                             [&](const DigestPiece& one) { return one.begin < begin; });
    return piece != worker.pieces.end() && piece->digest == digest ? piece->crc : 0;
  }

  // Which begins where the last one ends, or behind it.
  static void append_piece(std::vector<DigestPiece>& pieces, const DigestPiece& piece) {
    if (pieces.empty() || pieces.back().digest != piece.digest) return pieces.push_back(piece);
    DigestPiece& last = pieces.back();
    last.crc = crc32_combine(last.crc, piece.crc, piece.size);
    last.size += piece.size;
  }

  // The first digest of `output` that ends after `at`.
  size_t first_digest(const OutputState& output, uint64_t at) const {
    const auto found = std::partition_point(output.digests.begin(), output.digests.end(),
                                            [&](size_t i) { return plan_.digests()[i].end <= at; });
    return static_cast<size_t>(found - output.digests.begin());
  }

  static std::vector<DigestPiece>::const_iterator find_piece(const OutputState& output,
                                                             size_t which) {
    const auto found =
        std::lower_bound(output.pieces.begin(), output.pieces.end(), which,
                         [](const DigestPiece& one, size_t number) { return one.digest < number; });
    return found != output.pieces.end() && found->digest == which ? found : output.pieces.end();
  }

  void add(OutputId out, const std::vector<DigestPiece>& pieces) {
    OutputState& output = outputs_[out];
    std::vector<DigestPiece> known;  // of which nothing is left
    {
      const std::lock_guard lock(output.mutex);
      output.pieces.insert(output.pieces.end(), pieces.begin(), pieces.end());
      if (!sink_.wants_digests_early()) return;
      join_pieces(output.pieces);
      for (const DigestPiece& piece : pieces) {
        const Digest& digest = plan_.digests()[piece.digest];
        const auto found = find_piece(output, piece.digest);
        if (found->size != digest.end - digest.begin) continue;
        known.push_back(*found);
        // Places that lie elsewhere are written by whoever has all checksums.
        if (!output.is_whole) output.known.push_back(*found);
        output.pieces.erase(found);
        output.given.insert(piece.digest);
      }
    }
    for (const DigestPiece& piece : known) {
      write_left_out(units_, plan_.digests()[piece.digest], piece.crc, sink_, cut_of(out));
    }
  }

  // The part of an output that is in this run.
  OutputCut cut_of(OutputId out) const {
    const bool is_last = out + size_t{1} == plan_.outputs().size();
    return {out == 0 ? cut_.begin : 0, is_last ? cut_.end : ~uint64_t{0}};
  }

  void finish(OutputId out) {
    OutputState& output = outputs_[out];
    // The checksums of one that others write, too, are written by whoever has all of them.
    if (!output.is_whole) return sink_.finish(out);
    join_pieces(output.pieces);
    for (const size_t which : output.digests) {
      if (output.given.contains(which)) continue;
      const auto piece = find_piece(output, which);
      const uint32_t crc = piece != output.pieces.end() ? piece->crc : 0;
      write_left_out(units_, plan_.digests()[which], crc, sink_);
    }
    output.pieces = {};
    output.given = {};
    sink_.finish(out);
  }

  const CopyPlan& plan_;
  const OutputCut cut_;
  const InputFiles& inputs_;
  Sink& sink_;
  Progress& progress_;
  const ExecOptions& options_;
  const uint64_t unit_bytes_;
  RateLimit& limit_;
  RecordChecks& checks_;
  FactorCache factors_;
  const Units units_;
  std::deque<OutputState> outputs_;  // deque: the states cannot move
  std::vector<Place> places_;        // rising
  std::vector<BatchRange> done_;     // by the run that this one resumes
  std::optional<AnnouncedReads> ahead_;
  std::atomic<bool> failed_{false};

  std::mutex mutex_;                 // guards what follows
  std::condition_variable changed_;  // a batch is done, or the run has failed
  uint64_t next_ = 0;                // batch
  uint64_t saved_ = 0;               // next_ when `save` was called last
  size_t under_way_ = 0;             // batches
  uint64_t bytes_read_ = 0;          // by batches that are done
  std::chrono::steady_clock::time_point next_save_ =
      std::chrono::steady_clock::now() + options_.save_every;
};

void check_reached(const RunState& state, const Units& units, uint64_t unit_bytes) {
  uint64_t reached = 0;
  for (const BatchRange& range : state.done) {
    if (range.first < reached || range.last < range.first || range.last > units.batches() ||
        state.unit_bytes != unit_bytes) {
      throw CorruptError({}, "more than the plan has");
    }
    reached = range.last;
  }
}

void join_pieces(std::vector<DigestPiece>& pieces) {
  std::sort(pieces.begin(), pieces.end(), [](const DigestPiece& a, const DigestPiece& b) {
    return std::pair(a.digest, a.begin) < std::pair(b.digest, b.begin);
  });
  size_t joined = 0;
  for (const DigestPiece& piece : pieces) {
    DigestPiece* last = joined == 0 ? nullptr : &pieces[joined - 1];
    if (last != nullptr && last->digest == piece.digest &&
        last->begin + last->size == piece.begin) {
      last->crc = crc32_combine(last->crc, piece.crc, piece.size);
      last->size += piece.size;
    } else {
      pieces[joined++] = piece;
    }
  }
  pieces.resize(joined);
}

RunStats execute(const CopyPlan& plan, const InputFiles& inputs, Sink& sink, Progress& progress,
                 const ExecOptions& options) {
  const auto start = std::chrono::steady_clock::now();
  RecordChecks checks(plan, options.records, options.check_all_records);
  RateLimit limit(options.limit_rate, progress.cancelled);
  PlanRun run(plan, {}, checks, inputs, sink, limit, progress, options);
  progress.bytes_total = run.bytes();
  run.begin();
  run_workers(options.threads, [&] { run.work(); });
  checks.verify(inputs);

  RunStats stats;
  stats.bytes_written = plan.bytes_written();
  stats.bytes_stored = stats.bytes_written;
  stats.bytes_read = run.bytes_read();
  stats.records_checked = checks.checked();
  stats.records_unchecked = checks.unchecked();
  stats.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return stats;
}

void execute_one(const CopyPlan& plan, OutputId out, const InputFiles& inputs, Sink& sink,
                 Progress& progress, const ExecOptions& options) {
  const Units units(plan, {}, options.unit_bytes);
  RunState others{.unit_bytes = options.unit_bytes};
  for (size_t batch = 0; batch < units.batches(); ++batch) {
    if (units.batch(batch).front().out == out) continue;
    // Every batch asks them all.
    if (others.done.empty() || others.done.back().last < batch) {
      others.done.push_back({batch, batch});
    }
    others.done.back().last = batch + 1;
  }
  ExecOptions only = options;
  only.from = &others;
  execute(plan, inputs, sink, progress, only);
}

PartRun::PartRun(const CopyPlan& plan, const OutputCut& cut, uint64_t unit_bytes,
                 RecordChecks& checks, const InputFiles& inputs, Sink& sink, RateLimit& limit,
                 Progress& progress)
    : options_{.unit_bytes = unit_bytes},
      checks_(checks),
      run_(std::make_unique<PlanRun>(plan, cut, checks, inputs, sink, limit, progress, options_)) {
  run_->begin();
}
PartRun::~PartRun() = default;

void PartRun::work() {
  run_->work();
}
void PartRun::stop() {
  run_->fail();
}
PartSums PartRun::sums() {
  return {run_->unfinished_digests(), checks_.reported(), run_->bytes_read()};
}

}  // namespace dsckpt
