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
  static constexpr size_t kUnreported = ~size_t{0};
  uint32_t record;
  size_t item;  // kUnreported if whoever reads it does not checksum it
  uint64_t begin;
  uint64_t end;
  bool strided;
};

// The gaps that ranges, which come in the order of their begins, leave in an extent.
class Gaps {
 public:
  explicit Gaps(const Extent& extent) : extent_(extent), reached_(extent.offset) {}

  uint64_t reached() const { return reached_; }
  void add(uint64_t begin, uint64_t end) {
    if (begin > reached_) gaps_.push_back({extent_.file, reached_, begin - reached_});
    reached_ = std::max(reached_, end);
  }
  const std::vector<Extent>& finish() {
    add(extent_.end(), extent_.end());
    return gaps_;
  }

 private:
  Extent extent_;
  uint64_t reached_;
  std::vector<Extent> gaps_;
};

}  // namespace

RecordChecks::RecordChecks(const CopyPlan& plan, std::vector<InputRecord> records, bool all)
    : records_(std::move(records)), record_of_item_(plan.items().size(), kNone) {
  std::erase_if(records_, [](const InputRecord& record) { return record.extent.size == 0; });
  std::sort(records_.begin(), records_.end(), [](const InputRecord& a, const InputRecord& b) {
    return std::tie(a.extent.file, a.extent.offset) < std::tie(b.extent.file, b.extent.offset);
  });

  std::vector<Read> reads;
  const auto add = [&](size_t index, Operand from, uint64_t size, bool strided) {
    const auto after = std::upper_bound(
        records_.begin(), records_.end(), from, [](const Operand& a, const InputRecord& b) {
          return std::tie(a.in, a.src) < std::tie(b.extent.file, b.extent.offset);
        });
    if (after == records_.begin()) return;
    const Extent& extent = std::prev(after)->extent;
    const uint64_t end = from.src + size;
    if (extent.file != from.in || end > extent.end()) return;
    reads.push_back(
        {static_cast<uint32_t>(after - records_.begin() - 1), index, from.src, end, strided});
  };
  for (size_t i = 0; i < plan.items().size(); ++i) {
    const CopyItem& item = plan.items()[i];
    if (item.op == Op::literal) continue;
    const uint64_t size = (item.rows - 1) * static_cast<uint64_t>(item.src_stride) + item.row_bytes;
    add(item.op == Op::mean ? Read::kUnreported : i, {item.in, item.src}, size, item.rows > 1);
    for (const Operand& operand : plan.operands_of(item)) {
      add(Read::kUnreported, operand, size, false);
    }
  }
  std::sort(reads.begin(), reads.end(), [](const Read& a, const Read& b) {
    return std::tie(a.record, a.begin) < std::tie(b.record, b.begin);
  });

  auto first = reads.begin();
  for (uint32_t r = 0; r < records_.size(); ++r) {
    const Extent& extent = records_[r].extent;
    auto last = first;
    bool linear = true;
    Gaps unread(extent);
    Gaps unreported(extent);
    for (; last != reads.end() && last->record == r; ++last) {
      unread.add(last->begin, last->end);
      if (last->item == Read::kUnreported) continue;
      linear = linear && !last->strided && last->begin >= unreported.reached();
      unreported.add(last->begin, last->end);
    }
    uint64_t left_out = 0;
    for (const Extent& gap : unread.finish()) left_out += gap.size;

    const bool read_whole = first != last && left_out <= tolerable_gap(extent.size);
    if (all || read_whole) {
      ++checked_;
      if (linear) {
        for (auto read = first; read != last; ++read) {
          if (read->item != Read::kUnreported) record_of_item_[read->item] = r;
        }
        for (const Extent& gap : unreported.finish()) extra_reads_.push_back({r, gap});
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
