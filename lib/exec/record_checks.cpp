#include "exec/record_checks.h"

#include <algorithm>
#include <tuple>

#include "base/error.h"
#include "base/kernels.h"

namespace dsckpt {
namespace {

// A record is worth completing if the plan leaves out no more than this.
uint64_t tolerable_gap(uint64_t record_size) {
  return std::max<uint64_t>(64 << 10, record_size / 64);
}

struct Read {
  uint32_t record;
  size_t item;
  uint64_t begin;
  uint64_t end;
  bool strided;
};

}  // namespace

RecordChecks::RecordChecks(const CopyPlan& plan, std::vector<InputRecord> records, bool all)
    : records_(std::move(records)), record_of_item_(plan.items().size(), kNone) {
  std::erase_if(records_, [](const InputRecord& record) { return record.extent.size == 0; });
  std::sort(records_.begin(), records_.end(), [](const InputRecord& a, const InputRecord& b) {
    return std::tie(a.extent.file, a.extent.offset) < std::tie(b.extent.file, b.extent.offset);
  });

  std::vector<Read> reads;
  for (size_t i = 0; i < plan.items().size(); ++i) {
    const CopyItem& item = plan.items()[i];
    if (item.op == Op::literal) continue;
    const auto after = std::upper_bound(
        records_.begin(), records_.end(), item, [](const CopyItem& a, const InputRecord& b) {
          return std::tie(a.in, a.src) < std::tie(b.extent.file, b.extent.offset);
        });
    if (after == records_.begin()) continue;
    const Extent& extent = std::prev(after)->extent;
    const uint64_t end =
        item.src + (item.rows - 1) * static_cast<uint64_t>(item.src_stride) + item.row_bytes;
    if (extent.file != item.in || end > extent.end()) continue;
    reads.push_back(
        {static_cast<uint32_t>(after - records_.begin() - 1), i, item.src, end, item.rows > 1});
  }
  std::sort(reads.begin(), reads.end(), [](const Read& a, const Read& b) {
    return std::tie(a.record, a.begin) < std::tie(b.record, b.begin);
  });

  auto first = reads.begin();
  for (uint32_t r = 0; r < records_.size(); ++r) {
    const Extent& extent = records_[r].extent;
    auto last = first;
    bool linear = true;
    uint64_t reached = extent.offset;
    uint64_t left_out = 0;
    std::vector<Extent> gaps;
    for (; last != reads.end() && last->record == r; ++last) {
      linear = linear && !last->strided && last->begin >= reached;
      if (last->begin > reached) gaps.push_back({extent.file, reached, last->begin - reached});
      reached = std::max(reached, last->end);
    }
    if (reached < extent.end()) gaps.push_back({extent.file, reached, extent.end() - reached});
    for (const Extent& gap : gaps) left_out += gap.size;

    const bool read_whole = first != last && left_out <= tolerable_gap(extent.size);
    if (all || read_whole) {
      ++checked_;
      if (linear) {
        for (auto read = first; read != last; ++read) record_of_item_[read->item] = r;
        for (const Extent& gap : gaps) extra_reads_.push_back({r, gap});
      } else {
        extra_reads_.push_back({r, extent});
      }
    }
    first = last;
  }
}

void RecordChecks::report(uint32_t record, Extent extent, uint32_t crc) {
  const std::lock_guard lock(mutex_);
  pieces_.push_back({record, crc, extent.offset, extent.size});
}

void RecordChecks::verify(const InputFiles& inputs) const {
  std::sort(pieces_.begin(), pieces_.end(), [](const Piece& a, const Piece& b) {
    return std::tie(a.record, a.offset) < std::tie(b.record, b.offset);
  });
  for (auto piece = pieces_.begin(); piece != pieces_.end();) {
    const InputRecord& record = records_[piece->record];
    uint32_t crc = 0;
    const uint32_t index = piece->record;
    for (; piece != pieces_.end() && piece->record == index; ++piece) {
      crc = crc32_combine(crc, piece->crc, piece->size);
    }
    if (crc != record.crc32) {
      throw CorruptError({.file = inputs[record.extent.file].display(),
                          .member = record.name,
                          .offset = record.extent.offset},
                         "CRC32 mismatch: the data has changed since it was saved");
    }
  }
}

}  // namespace dsckpt
