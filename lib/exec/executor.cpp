#include "exec/executor.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <deque>
#include <mutex>
#include <optional>
#include <utility>

#include "base/bytes.h"
#include "base/error.h"
#include "base/kernels.h"
#include "exec/record_checks.h"
#include "exec/workers.h"

namespace dsckpt {
namespace {

// Together with the chunk it stays in the second-level cache between read, checksum and write; 512
// KiB take twice as long (exec/README.md).
constexpr uint64_t kUnitBytes = 256 << 10;
// Outputs up to this size are written by one thread each.
constexpr uint64_t kBatchBytes = 16 << 20;
// Casts and gathers go through a piece that fits the second-level cache.
constexpr uint64_t kChunkBytes = 256 << 10;
// Rows that lie closer together than this are read in one go and picked from memory.
constexpr uint64_t kDenseStride = 4096;

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
  struct Piece {
    size_t digest;
    uint64_t begin;
    uint64_t size;
    uint32_t crc;
  };
  std::mutex mutex;
  std::vector<Piece> pieces;
};

class Run {
 public:
  Run(const CopyPlan& plan, const InputFiles& inputs, Sink& sink, Progress& progress,
      const ExecOptions& options)
      : plan_(plan),
        inputs_(inputs),
        sink_(sink),
        progress_(progress),
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
  }

  ExecStats operator()(unsigned threads) {
    const auto start = std::chrono::steady_clock::now();
    for (OutputId out = 0; out < outputs_.size(); ++out) {
      if (outputs_[out].units_left == 0) sink_.finish(out);
    }
    // The units are taken in order, so that outputs grow from front to back whatever the threads
    // do.
    run_workers(threads, [&] { work(); });
    checks_.verify(inputs_);

    ExecStats stats;
    stats.bytes_written = plan_.bytes_written();
    stats.bytes_read = bytes_read_;
    stats.records_checked = checks_.checked();
    stats.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    return stats;
  }

 private:
  struct Buffers {
    std::vector<std::byte> unit = std::vector<std::byte>(kUnitBytes);
    std::vector<std::byte> chunk = std::vector<std::byte>(kChunkBytes);
  };

  void cut_into_units() {
    const std::vector<CopyItem>& items = plan_.items();
    for (size_t i = 0; i < items.size();) {
      const OutputId out = items[i].out;
      Unit unit{out, i, 0, 0, 0};
      for (; i < items.size() && items[i].out == out; ++i) {
        const CopyItem& item = items[i];
        // A unit ends between two elements, never within one.
        const uint64_t element = size_of(item.to);
        for (uint64_t room; item.dst_end() > unit.begin + kUnitBytes;) {
          room = unit.begin + kUnitBytes;
          const uint64_t cut = item.dst + (room - item.dst) / element * element;
          unit.end = cut;
          add(unit);
          unit = {out, i, cut - item.dst, cut, cut};
        }
        unit.end = item.dst_end();
      }
      if (unit.end > unit.begin) add(unit);
    }
    for (size_t i = 0; i < checks_.extra_reads().size(); ++i) {
      const Extent& extent = checks_.extra_reads()[i].extent;
      for (uint64_t at = 0; at < extent.size; at += kUnitBytes) {
        units_.push_back({Unit::kNoOutput, i, at, 0, std::min(kUnitBytes, extent.size - at)});
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

  void work() {
    try {
      Buffers buffers;
      uint64_t read = 0;
      for (size_t batch; (batch = next_++) < batches_.size();) {
        const size_t end = batch + 1 < batches_.size() ? batches_[batch + 1] : units_.size();
        for (size_t i = batches_[batch]; i < end; ++i) {
          if (progress_.cancelled) throw InterruptedError();
          if (failed_) return;
          read += units_[i].out == Unit::kNoOutput ? read_extra(units_[i], buffers)
                                                   : write(units_[i], buffers);
        }
      }
      bytes_read_ += read;
    } catch (...) {
      failed_ = true;
      throw;
    }
  }

  uint64_t read_extra(const Unit& unit, Buffers& buffers) {
    const RecordChecks::ExtraRead& extra = checks_.extra_reads()[unit.item];
    const Extent extent{extra.extent.file, extra.extent.offset + unit.skip, unit.end};
    const std::span<std::byte> bytes(buffers.unit.data(), extent.size);
    inputs_[extent.file].read_at(extent.offset, bytes);
    checks_.report(extra.record, extent, crc32(0, bytes));
    progress_.bytes_done += extent.size;
    return extent.size;
  }

  uint64_t write(const Unit& unit, Buffers& buffers) {
    OutputState& output = outputs_[unit.out];
    std::vector<OutputState::Piece> pieces;
    uint64_t read = 0;
    uint64_t skip = unit.skip;
    size_t digest = first_digest(output, unit.begin);
    size_t index = unit.item;
    for (uint64_t at = unit.begin; at < unit.end; ++index) {
      const CopyItem& item = plan_.items()[index];
      const uint64_t size = std::min(item.dst_end(), unit.end) - at;
      const std::span<std::byte> target(buffers.unit.data() + (at - unit.begin), size);
      std::optional<uint32_t> crc;
      read += fill(item, checks_.record_of_item(index), skip, target, buffers, crc);
      while (digest < output.digests.size() && plan_.digests()[output.digests[digest]].end <= at) {
        ++digest;
      }
      if (digest < output.digests.size()) {
        const size_t which = output.digests[digest];
        if (plan_.digests()[which].begin <= at) {
          const uint32_t piece_crc = crc ? *crc : crc32(0, target);
          if (!pieces.empty() && pieces.back().digest == which) {
            OutputState::Piece& last = pieces.back();
            last.crc = crc32_combine(last.crc, piece_crc, size);
            last.size += size;
          } else {
            pieces.push_back({which, at, size, piece_crc});
          }
        }
      }
      at += size;
      skip = 0;
    }
    const uint64_t size = unit.end - unit.begin;
    sink_.write_at(unit.out, unit.begin, {buffers.unit.data(), size});
    if (!pieces.empty()) {
      const std::lock_guard lock(output.mutex);
      output.pieces.insert(output.pieces.end(), pieces.begin(), pieces.end());
    }
    if (--output.units_left == 0) finish(unit.out);
    progress_.bytes_done += size;
    return read;
  }

  // The first digest of `output` that ends after `at`.
  size_t first_digest(const OutputState& output, uint64_t at) const {
    const auto found = std::partition_point(output.digests.begin(), output.digests.end(),
                                            [&](size_t i) { return plan_.digests()[i].end <= at; });
    return static_cast<size_t>(found - output.digests.begin());
  }

  // Fills `target` with the bytes of `item` from `skip` on. If they had to be checksummed for
  // `record` and come out as they went in, `crc` is their CRC32. Returns the bytes read.
  uint64_t fill(const CopyItem& item, uint32_t record, uint64_t skip, std::span<std::byte> target,
                Buffers& buffers, std::optional<uint32_t>& crc) {
    if (item.op == Op::literal) {
      std::memcpy(target.data(), plan_.literals().data() + item.src + skip, target.size());
      return 0;
    }
    if (item.op == Op::zeros) {
      std::fill(target.begin(), target.end(), std::byte{0});
      return 0;
    }
    const bool checked = record != RecordChecks::kNone;
    if (item.op == Op::interleave && item.from == item.to) {
      weave(item, skip, target, buffers);
      return target.size();
    }
    if (item.op == Op::copy) {
      gather(item, skip, target, buffers);
      if (checked) {
        crc = crc32(0, target);
        checks_.report(record, {item.in, item.src + skip, target.size()}, *crc);
      }
      return target.size();
    }
    const uint64_t in_size = size_of(item.from);
    const uint64_t out_size = size_of(item.to);
    const bool converts = item.from != item.to;
    uint64_t from = skip / out_size * in_size;
    const uint64_t total = target.size() / out_size * in_size;
    uint32_t source_crc = 0;
    const uint64_t begin = from;
    for (uint64_t left = total; left > 0;) {
      const uint64_t size = std::min(left, kChunkBytes / 2);
      const std::span<std::byte> chunk(buffers.chunk.data() + kChunkBytes / 2, size);
      const std::span<std::byte> out =
          target.subspan((from - begin) / in_size * out_size, size / in_size * out_size);
      const std::span<std::byte> value = converts ? chunk : out;
      if (item.op == Op::mean) {
        average(item, from, value, buffers);
      } else if (item.op == Op::interleave) {
        weave(item, from, value, buffers);
      } else {
        gather(item, from, value, buffers);
        if (item.op == Op::same) compare(item, from, value, buffers);
      }
      if (checked) source_crc = crc32(source_crc, value);
      if (converts) convert(item.from, item.to, value.data(), out.data(), size / in_size);
      from += size;
      left -= size;
    }
    if (checked) {
      checks_.report(record, {item.in, item.src + begin, total}, source_crc);
      if (!converts) crc = source_crc;
    }
    return total * item.reads_of_a_byte();
  }

  // The mean of bytes [from, from + target.size()) of the item's operands. Uses the first half of
  // the chunk buffer.
  void average(const CopyItem& item, uint64_t from, std::span<std::byte> target, Buffers& buffers) {
    const size_t count = target.size() / sizeof(float);
    const std::span<std::byte> term(buffers.chunk.data(), target.size());
    std::fill(target.begin(), target.end(), std::byte{0});
    inputs_[item.in].read_at(item.src + from, term);
    add_float32(target.data(), term.data(), count);
    for (const Operand& operand : plan_.operands_of(item)) {
      inputs_[operand.in].read_at(operand.src + from, term);
      add_float32(target.data(), term.data(), count);
    }
    divide_float32(target.data(), static_cast<float>(uint64_t{1} + item.operand_count), count);
  }

  // Throws unless bytes [from, from + first.size()) of the item's other operands are `first`. Uses
  // the first half of the chunk buffer.
  void compare(const CopyItem& item, uint64_t from, std::span<const std::byte> first,
               Buffers& buffers) {
    const std::span<std::byte> other(buffers.chunk.data(), first.size());
    for (const Operand& operand : plan_.operands_of(item)) {
      const InputFile& file = inputs_[operand.in];
      file.read_at(operand.src + from, other);
      if (std::memcmp(first.data(), other.data(), first.size()) == 0) continue;
      const auto at = std::mismatch(first.begin(), first.end(), other.begin()).first;
      throw InconsistentError(
          {.file = file.display(),
           .offset = operand.src + from + static_cast<uint64_t>(at - first.begin())},
          plan_.texts()[item.what] + " are not the same");
    }
  }

  // Reads source bytes [from, from + target.size()) of the item's rows laid end to end. Uses the
  // first half of the chunk buffer.
  void gather(const CopyItem& item, uint64_t from, std::span<std::byte> target, Buffers& buffers) {
    if (item.rows == 1) return inputs_[item.in].read_at(item.src + from, target);
    const Operand rows{item.in, item.src, item.row_bytes, item.src_stride};
    gather_rows(rows, from, from + target.size(), {target, item.row_bytes, 0, from}, buffers);
  }

  // The same of an interleave, column by column; reports those that belong to a record.
  void weave(const CopyItem& item, uint64_t from, std::span<std::byte> target, Buffers& buffers) {
    uint64_t before = 0;  // in a row, bytes of the columns before this one
    for (uint32_t i = 0; i < item.operand_count; ++i) {
      const size_t index = item.operand_begin + i;
      const Operand& column = plan_.operands()[index];
      // How much of the column lies in front of a byte of the rows laid end to end.
      const auto in_column = [&](uint64_t at) {
        const uint64_t in_row = at % item.row_bytes;
        return at / item.row_bytes * column.row_bytes +
               std::min(in_row - std::min(in_row, before), column.row_bytes);
      };
      const uint64_t begin = in_column(from);
      const uint64_t end = in_column(from + target.size());
      const Rows rows{target, item.row_bytes, before, from};
      before += column.row_bytes;
      if (begin == end) continue;
      if (!column.contiguous()) {
        gather_rows(column, begin, end, rows, buffers);
        continue;
      }
      const uint32_t record = checks_.record_of_operand(index);
      const bool checked = record != RecordChecks::kNone;
      const uint32_t crc = read_window(column, begin, end, rows, checked, buffers);
      if (checked) checks_.report(record, {column.in, column.src + begin, end - begin}, crc);
    }
  }

  // Where the bytes of a column go: rows of `pitch` bytes laid end to end, of which the column
  // begins `before` bytes into each, are in `target` from byte `first` on.
  struct Rows {
    std::span<std::byte> target;
    uint64_t pitch;
    uint64_t before;
    uint64_t first;

    // The place of `size` bytes of row `row` from its column's byte `at` on.
    std::span<std::byte> place(uint64_t row, uint64_t at, uint64_t size) const {
      return target.subspan(row * pitch + before + at - first, size);
    }
  };

  // Reads bytes [from, to) of the column's rows laid end to end. Uses the first half of the chunk
  // buffer.
  void gather_rows(const Operand& column, uint64_t from, uint64_t to, const Rows& rows,
                   Buffers& buffers) {
    const InputFile& file = inputs_[column.in];
    const uint64_t stride = static_cast<uint64_t>(column.stride);
    const uint64_t row_bytes = column.row_bytes;
    const bool dense = stride <= kDenseStride && row_bytes <= kDenseStride;
    while (from < to) {
      const uint64_t row = from / row_bytes;
      const uint64_t at = from % row_bytes;
      const uint64_t start = column.src + row * stride;
      if (!dense || at != 0 || to - from < row_bytes) {
        const uint64_t size = std::min(row_bytes - at, to - from);
        file.read_at(start + at, rows.place(row, at, size));
        from += size;
        continue;
      }
      const uint64_t fit = (kChunkBytes / 2 - row_bytes) / std::max<uint64_t>(stride, 1) + 1;
      const uint64_t count = std::min(fit, (to - from) / row_bytes);
      const std::span<std::byte> window(buffers.chunk.data(), (count - 1) * stride + row_bytes);
      file.read_at(start, window);
      for (uint64_t i = 0; i < count; ++i) {
        std::memcpy(rows.place(row + i, 0, row_bytes).data(), window.data() + i * stride,
                    row_bytes);
      }
      from += count * row_bytes;
    }
  }

  // The same for rows that follow each other in the file: one read for many of them, however long
  // they are. Returns the CRC32 of what it has read if `checked`.
  uint32_t read_window(const Operand& column, uint64_t from, uint64_t to, const Rows& rows,
                       bool checked, Buffers& buffers) {
    const InputFile& file = inputs_[column.in];
    uint32_t crc = 0;
    while (from < to) {
      const uint64_t in_row = std::min(column.row_bytes - from % column.row_bytes, to - from);
      const bool direct = in_row >= kChunkBytes / 2;
      const uint64_t size = direct ? in_row : std::min(to - from, kChunkBytes / 2);
      const std::span<std::byte> window =
          direct ? rows.place(from / column.row_bytes, from % column.row_bytes, in_row)
                 : std::span(buffers.chunk).first(size);
      file.read_at(column.src + from, window);
      if (checked) crc = crc32(crc, window);
      for (uint64_t done = 0; done < size && !direct;) {
        const uint64_t at = (from + done) % column.row_bytes;
        const uint64_t piece = std::min(column.row_bytes - at, size - done);
        std::memcpy(rows.place((from + done) / column.row_bytes, at, piece).data(),
                    window.data() + done, piece);
        done += piece;
      }
      from += size;
    }
    return crc;
  }

  void finish(OutputId out) {
    OutputState& output = outputs_[out];
    std::sort(
        output.pieces.begin(), output.pieces.end(),
        [](const OutputState::Piece& a, const OutputState::Piece& b) { return a.begin < b.begin; });
    auto piece = output.pieces.begin();
    for (const size_t which : output.digests) {
      const Digest& digest = plan_.digests()[which];
      uint32_t crc = 0;
      for (; piece != output.pieces.end() && piece->digest == which; ++piece) {
        crc = crc32_combine(crc, piece->crc, piece->size);
      }
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
  RecordChecks checks_;
  std::deque<OutputState> outputs_;  // deque: the states cannot move
  std::vector<Unit> units_;
  std::vector<size_t> batches_;  // the first unit of each
  std::atomic<size_t> next_{0};  // batch
  std::atomic<bool> failed_{false};
  std::atomic<uint64_t> bytes_read_{0};
};

}  // namespace

ExecStats execute(const CopyPlan& plan, const InputFiles& inputs, Sink& sink, Progress& progress,
                  const ExecOptions& options) {
  return Run(plan, inputs, sink, progress, options)(options.threads);
}

}  // namespace dsckpt
