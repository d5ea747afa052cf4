#include "exec/executor.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <optional>
#include <utility>

#include "base/bytes.h"
#include "base/kernels.h"
#include "dsckpt/error.h"
#include "exec/item_reader.h"
#include "exec/rate_limit.h"
#include "exec/record_checks.h"
#include "exec/workers.h"
#include "io/output_file.h"
#include "io/page_buffer.h"

namespace dsckpt {
namespace {

// Outputs up to this size are written by one thread each.
constexpr uint64_t kBatchBytes = 16 << 20;
constexpr uint64_t kPage = OutputFile::kDirectBlock;

// A contiguous range of one output: bytes [begin, end), from `skip` bytes into item `item` on. For
// an extra read `out` is kNoOutput and `item` is its index.
struct Unit {
  static constexpr OutputId kNoOutput = ~OutputId{0};
  OutputId out;
  size_t item;
  uint64_t skip;
  uint64_t begin;
  uint64_t end;
};

// One output on its way: how many units are left, and what its digests are made of.
struct OutputState {
  std::atomic<uint64_t> units_left{0};
  std::vector<size_t> digests;  // indices into the plan's, in the order of their ranges
  using Piece = RunState::DigestPiece;
  std::mutex mutex;
  std::vector<Piece> pieces;

  // Those of one digest that follow each other become one. Not while any are added.
  void join_pieces() {
    std::sort(pieces.begin(), pieces.end(),
              [](const Piece& a, const Piece& b) { return a.begin < b.begin; });
    size_t joined = 0;
    for (const Piece& piece : pieces) {
      Piece* last = joined == 0 ? nullptr : &pieces[joined - 1];
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
};

class Run {
 public:
  Run(const CopyPlan& plan, const InputFiles& inputs, Sink& sink, Progress& progress,
      const ExecOptions& options)
      : plan_(plan),
        inputs_(inputs),
        sink_(sink),
        progress_(progress),
        options_(options),
        unit_bytes_(options.unit_bytes),
        limit_(options.limit_rate, progress.cancelled),
        checks_(plan, options.records, options.check_all_records) {
    uint64_t total = plan.bytes_written();
    for (const RecordChecks::ExtraRead& extra : checks_.extra_reads()) total += extra.extent.size;
    progress_.bytes_total = total;
    for (size_t i = 0; i < plan.outputs().size(); ++i) outputs_.emplace_back();
    for (size_t i = 0; i < plan.digests().size(); ++i) {
      outputs_[plan.digests()[i].out].digests.push_back(i);
    }
    for (OutputState& output : outputs_) {
      std::sort(output.digests.begin(), output.digests.end(), [&](size_t a, size_t b) {
        const Digest& x = plan.digests()[a];
        const Digest& y = plan.digests()[b];
        return std::pair(x.begin, x.end) < std::pair(y.begin, y.end);
      });
    }
    cut_into_units();
    batch_units();
    if (options.from != nullptr) go_on_from(*options.from);
  }

  RunStats operator()(unsigned threads) {
    const auto start = std::chrono::steady_clock::now();
    for (OutputId out = 0; options_.from == nullptr && out < outputs_.size(); ++out) {
      if (plan_.outputs()[out].size == 0) sink_.finish(out);
    }
    // The units are taken in order, so that outputs grow from front to back whatever the threads
    // do.
    run_workers(threads, [&] { work(); });
    checks_.verify(inputs_);

    RunStats stats;
    stats.bytes_written = plan_.bytes_written();
    stats.bytes_stored = stats.bytes_written;
    stats.bytes_read = bytes_read_;
    stats.records_checked = checks_.checked();
    stats.records_unchecked = checks_.unchecked();
    stats.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    return stats;
  }

 private:
  // What one thread works with.
  struct Worker {
    // An element that lies across the end of a unit may move both its ends.
    explicit Worker(Run& run)
        : buffer(std::max(run.unit_bytes_ + 2 * kPage, ItemReader::kPieceBytes)),
          reader(run.plan_, run.inputs_, run.checks_) {}
    PageBuffer buffer;
    ItemReader reader;
    uint64_t bytes_read = 0;
  };

  void cut_into_units() {
    const std::vector<CopyItem>& items = plan_.items();
    for (size_t i = 0; i < items.size();) {
      const OutputId out = items[i].out;
      Unit unit{out, i, 0, 0, 0};
      uint64_t room = unit_bytes_;  // where the unit should end
      for (; i < items.size() && items[i].out == out; ++i) {
        const CopyItem& item = items[i];
        // It ends between two elements, never within one.
        const uint64_t element = size_of(item.to);
        for (; item.dst_end() > room; room += unit_bytes_) {
          const uint64_t cut = item.dst + (room - item.dst) / element * element;
          unit.end = cut;
          add(unit);
          unit = {out, i, cut - item.dst, cut, cut};
        }
        unit.end = item.dst_end();
      }
      if (unit.end > unit.begin) add(unit);
    }
    constexpr uint64_t kPiece = ItemReader::kPieceBytes;
    for (size_t i = 0; i < checks_.extra_reads().size(); ++i) {
      const Extent& extent = checks_.extra_reads()[i].extent;
      for (uint64_t at = 0; at < extent.size; at += kPiece) {
        units_.push_back({Unit::kNoOutput, i, at, 0, std::min(kPiece, extent.size - at)});
      }
    }
  }

  // Units of one small output are one thread's: two would wait for each other's writes. A large
  // output is everybody's.
  void batch_units() {
    for (size_t i = 0; i < units_.size(); ++i) {
      const OutputId out = units_[i].out;
      const bool alone = out != Unit::kNoOutput && plan_.outputs()[out].size <= kBatchBytes;
      if (i == 0 || !alone || units_[i - 1].out != out) batches_.push_back(i);
    }
  }

  void add(const Unit& unit) {
    units_.push_back(unit);
    ++outputs_[unit.out].units_left;
  }

  size_t end_of(size_t batch) const {
    return batch + 1 < batches_.size() ? batches_[batch + 1] : units_.size();
  }

  void go_on_from(const RunState& state) {
    if (state.batches > batches_.size() || state.unit_bytes != unit_bytes_) {
      throw CorruptError({}, "more than the plan has");
    }
    next_ = saved_ = state.batches;
    const size_t end = next_ < batches_.size() ? batches_[next_] : units_.size();
    for (size_t i = 0; i < end; ++i) {
      if (units_[i].out != Unit::kNoOutput) --outputs_[units_[i].out].units_left;
      progress_.bytes_done += units_[i].end - units_[i].begin;
    }
    for (const RunState::DigestPiece& piece : state.digests) {
      if (piece.digest >= plan_.digests().size()) throw CorruptError({}, "an unknown digest");
      outputs_[plan_.digests()[piece.digest].out].pieces.push_back(piece);
    }
    checks_.restore(state.records);
    bytes_read_ = state.bytes_read;
  }

  // Of a run that nothing is under way of.
  RunState state() {
    RunState state{.unit_bytes = unit_bytes_, .batches = next_, .bytes_read = bytes_read_};
    for (OutputState& output : outputs_) {
      output.join_pieces();
      state.digests.insert(state.digests.end(), output.pieces.begin(), output.pieces.end());
    }
    state.records = checks_.reported();
    return state;
  }

  bool is_time_to_save() const {
    if (!options_.save || next_ == saved_ || std::chrono::steady_clock::now() < next_save_)
      return false;
    if (!options_.save_between_outputs) return true;
    const OutputId out = units_[batches_[next_]].out;
    return out == Unit::kNoOutput || out != units_[batches_[next_ - 1]].out;
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
    while (!failed_ && next_ < batches_.size() && is_time_to_save()) {
      if (under_way_ == 0) {
        save();
      } else {
        changed_.wait(lock);
      }
    }
    if (failed_ || next_ == batches_.size()) return std::nullopt;
    ++under_way_;
    return next_++;
  }

  void end_batch(uint64_t bytes_read) {
    {
      const std::lock_guard lock(mutex_);
      --under_way_;
      bytes_read_ += bytes_read;
    }
    changed_.notify_all();
  }

  void fail() {
    {
      const std::lock_guard lock(mutex_);
      failed_ = true;
    }
    changed_.notify_all();
  }

  void work() {
    try {
      Worker worker(*this);
      while (const std::optional<size_t> batch = begin_batch()) {
        for (size_t i = batches_[*batch]; i < end_of(*batch); ++i) {
          if (progress_.cancelled) throw InterruptedError();
          if (failed_) return;
          limit_.take(units_[i].end - units_[i].begin);
          if (units_[i].out == Unit::kNoOutput) {
            read_extra(units_[i], worker);
          } else {
            write(units_[i], worker);
          }
        }
        end_batch(std::exchange(worker.bytes_read, 0));
      }
    } catch (...) {
      fail();
      throw;
    }
  }

  void read_extra(const Unit& unit, Worker& worker) {
    const RecordChecks::ExtraRead& extra = checks_.extra_reads()[unit.item];
    const Extent extent{extra.extent.file, extra.extent.offset + unit.skip, unit.end};
    const std::span<std::byte> bytes = worker.buffer.bytes().first(extent.size);
    inputs_[extent.file].read_at(extent.offset, bytes);
    checks_.report(extra.record, extent, crc32(0, bytes));
    progress_.bytes_done += extent.size;
    worker.bytes_read += extent.size;
  }

  void write(const Unit& unit, Worker& worker) {
    OutputState& output = outputs_[unit.out];
    const std::span<std::byte> bytes =
        worker.buffer.bytes().subspan(unit.begin % kPage, unit.end - unit.begin);
    std::vector<OutputState::Piece> pieces;
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
      if (digested) {
        const size_t which = output.digests[digest];
        if (!pieces.empty() && pieces.back().digest == which) {
          OutputState::Piece& last = pieces.back();
          last.crc = crc32_combine(last.crc, crc, size);
          last.size += size;
        } else {
          pieces.push_back({which, at, size, crc});
        }
      }
      at += size;
      skip = 0;
    }
    sink_.write_at(unit.out, unit.begin, bytes);
    if (!pieces.empty()) {
      const std::lock_guard lock(output.mutex);
      output.pieces.insert(output.pieces.end(), pieces.begin(), pieces.end());
    }
    if (--output.units_left == 0) finish(unit.out);
    progress_.bytes_done += bytes.size();
  }

  // The first digest of `output` that ends after `at`.
  size_t first_digest(const OutputState& output, uint64_t at) const {
    const auto found = std::partition_point(output.digests.begin(), output.digests.end(),
                                            [&](size_t i) { return plan_.digests()[i].end <= at; });
    return static_cast<size_t>(found - output.digests.begin());
  }

  void finish(OutputId out) {
    OutputState& output = outputs_[out];
    output.join_pieces();
    auto piece = output.pieces.begin();
    for (const size_t which : output.digests) {
      const Digest& digest = plan_.digests()[which];
      const bool has_bytes = piece != output.pieces.end() && piece->digest == which;
      const uint32_t crc = has_bytes ? (piece++)->crc : 0;
      std::byte bytes[sizeof crc];
      store_le(bytes, crc);
      for (const uint64_t patch : digest.patches) sink_.write_at(out, patch, bytes);
    }
    output.pieces = {};
    sink_.finish(out);
  }

  const CopyPlan& plan_;
  const InputFiles& inputs_;
  Sink& sink_;
  Progress& progress_;
  const ExecOptions& options_;
  const uint64_t unit_bytes_;
  RateLimit limit_;
  RecordChecks checks_;
  std::deque<OutputState> outputs_;  // deque: the states cannot move
  std::vector<Unit> units_;
  std::vector<size_t> batches_;  // the first unit of each
  std::atomic<bool> failed_{false};

  std::mutex mutex_;                 // of what follows
  std::condition_variable changed_;  // a batch is done, or the run has failed
  size_t next_ = 0;                  // batch
  size_t saved_ = 0;                 // next_ when `save` was called last
  size_t under_way_ = 0;             // batches
  uint64_t bytes_read_ = 0;          // by batches that are done
  std::chrono::steady_clock::time_point next_save_ =
      std::chrono::steady_clock::now() + options_.save_every;
};

}  // namespace

RunStats execute(const CopyPlan& plan, const InputFiles& inputs, Sink& sink, Progress& progress,
                 const ExecOptions& options) {
  return Run(plan, inputs, sink, progress, options)(options.threads);
}

}  // namespace dsckpt
