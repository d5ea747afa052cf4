#include "exec/record_checks.h"

#include <algorithm>
#include <iterator>
#include <tuple>
#include <utility>

#include "base/kernels.h"
#include "dsckpt/error.h"

namespace dsckpt {
namespace {

// So little is read besides whatever it comes to.
uint64_t tolerable_gap(uint64_t record_size) {
  return std::max<uint64_t>(64 << 10, record_size / 64);
}

struct Read {
  uint32_t record;
  // Where to say that it belongs to the record; null if whoever reads it does not checksum it.
  uint32_t* reported;
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
    : records_(std::move(records)),
      use_{std::vector<uint32_t>(plan.items().size(), kNone),
           std::vector<uint32_t>(plan.operands().size(), kNone)} {
  std::erase_if(records_, [](const InputRecord& record) { return record.extent.size == 0; });
  std::sort(records_.begin(), records_.end(), [](const InputRecord& a, const InputRecord& b) {
    return std::tie(a.extent.file, a.extent.offset) < std::tie(b.extent.file, b.extent.offset);
  });

  pieces_.resize(records_.size());

  std::vector<Read> reads;
  const auto add = [&](uint32_t* reported, const Extent& read, bool strided) {
    const auto after = std::upper_bound(
        records_.begin(), records_.end(), read, [](const Extent& a, const InputRecord& b) {
          return std::tie(a.file, a.offset) < std::tie(b.extent.file, b.extent.offset);
        });
    const auto belongs = [&](const Extent& extent) {
      return extent.file == read.file && extent.offset < read.end() && read.offset < extent.end();
    };
    auto record = after == records_.begin() ? after : std::prev(after);
    if (record != after && !belongs(record->extent)) ++record;
    for (; record != records_.end() && belongs(record->extent); ++record) {
      const Extent& extent = record->extent;
      const bool inside = read.offset >= extent.offset && read.end() <= extent.end();
      reads.push_back({static_cast<uint32_t>(record - records_.begin()),
                       inside ? reported : nullptr, std::max(read.offset, extent.offset),
                       std::min(read.end(), extent.end()), strided});
    }
  };
  // Where whoever reads the source number `k` of an item looks whether to checksum it.
  const auto reported = [&](size_t i, const CopyItem& item, size_t k) -> uint32_t* {
    switch (item.op) {
      case Op::copy:
      case Op::cast:
        return &use_.of_item[i];
      case Op::same:
        return k == 0 ? &use_.of_item[i] : nullptr;
      case Op::interleave: {
        const size_t operand = item.operand_begin + k;
        return plan.operands()[operand].contiguous() ? &use_.of_operand[operand] : nullptr;
      }
      case Op::weighted:
        return &use_.of_operand[item.operand_begin + k];
      default:
        return nullptr;
    }
  };
  for (size_t i = 0; i < plan.items().size(); ++i) {
    const CopyItem& item = plan.items()[i];
    const std::span<const Rows> sources = plan.sources_of(item);
    for (size_t k = 0; k < sources.size(); ++k) {
      add(reported(i, item, k), sources[k].span(item.rows),
          item.rows > 1 && item.op != Op::interleave);
    }
  }
  std::sort(reads.begin(), reads.end(), [](const Read& a, const Read& b) {
    return std::tie(a.record, a.begin) < std::tie(b.record, b.begin);
  });

  // What the plan reads of each record, and what it leaves out.
  struct Use {
    std::vector<Read>::const_iterator first;
    std::vector<Read>::const_iterator last;
    uint64_t left_out = 0;
  };
  std::vector<Use> uses(records_.size());
  std::vector<uint32_t> order;  // of those that are read
  auto next = reads.cbegin();
  for (uint32_t r = 0; r < records_.size(); ++r) {
    Use& use = uses[r];
    use.first = next;
    Gaps unread(records_[r].extent);
    for (; next != reads.cend() && next->record == r; ++next) unread.add(next->begin, next->end);
    use.last = next;
    for (const Extent& gap : unread.finish()) use.left_out += gap.size;
    if (use.first != use.last) order.push_back(r);
  }
  std::stable_sort(order.begin(), order.end(),
                   [&](uint32_t a, uint32_t b) { return uses[a].left_out < uses[b].left_out; });
  uint64_t besides = std::max(kMostBesides, plan.bytes_read() / kShareBesides);
  std::vector<bool> is_worth(records_.size(), all);
  for (const uint32_t r : order) {
    const bool is_little = uses[r].left_out <= tolerable_gap(records_[r].extent.size);
    if (!all && !is_little && uses[r].left_out > besides) {
      ++unchecked_;
      continue;
    }
    besides -= std::min(besides, uses[r].left_out);
    is_worth[r] = true;
  }

  for (uint32_t r = 0; r < records_.size(); ++r) {
    if (!is_worth[r]) continue;
    ++checked_;
    const Extent& extent = records_[r].extent;
    bool linear = true;
    Gaps unreported(extent);
    for (auto read = uses[r].first; read != uses[r].last; ++read) {
      if (read->reported == nullptr) continue;
      linear = linear && !read->strided && read->begin >= unreported.reached();
      unreported.add(read->begin, read->end);
    }
    if (!linear) {
      use_.extra_reads.push_back({r, extent});
      continue;
    }
    for (auto read = uses[r].first; read != uses[r].last; ++read) {
      if (read->reported != nullptr) *read->reported = r;
    }
    for (const Extent& gap : unreported.finish()) use_.extra_reads.push_back({r, gap});
  }
}

RecordChecks::RecordChecks(RecordUse use, size_t records)
    : use_(std::move(use)), pieces_(records) {}

void RecordChecks::report(uint32_t record, Extent extent, uint32_t crc) {
  const std::lock_guard lock(mutex_);
  std::map<uint64_t, Piece>& pieces = pieces_[record];
  const auto join_with_next = [&](auto piece) {
    const auto next = std::next(piece);
    if (next == pieces.end() || piece->first + piece->second.size != next->first) return;
    piece->second.crc = crc32_combine(piece->second.crc, next->second.crc, next->second.size);
    piece->second.size += next->second.size;
    pieces.erase(next);
  };
  const auto added = pieces.emplace(extent.offset, Piece{extent.size, crc}).first;
  join_with_next(added);
  if (added != pieces.begin()) join_with_next(std::prev(added));
}

std::vector<RecordPiece> RecordChecks::reported() const {
  std::vector<RecordPiece> found;
  for (uint32_t r = 0; r < pieces_.size(); ++r) {
    for (const auto& [offset, piece] : pieces_[r]) {
      found.push_back({r, offset, piece.size, piece.crc});
    }
  }
  return found;
}

void RecordChecks::restore(const std::vector<RecordPiece>& pieces) {
  for (const RecordPiece& piece : pieces) {
    const bool known = piece.record < records_.size();
    const Extent whole = known ? records_[piece.record].extent : Extent{};
    if (!known || piece.offset < whole.offset || piece.size > whole.size ||
        piece.offset - whole.offset > whole.size - piece.size) {
      throw CorruptError({}, "a record that the plan does not read");
    }
    report(piece.record, {whole.file, piece.offset, piece.size}, piece.crc);
  }
}

void RecordChecks::verify(const InputFiles& inputs) const {
  for (size_t r = 0; r < records_.size(); ++r) {
    if (pieces_[r].empty()) continue;
    uint32_t crc = 0;
    for (const auto& [offset, piece] : pieces_[r]) crc = crc32_combine(crc, piece.crc, piece.size);
    const InputRecord& record = records_[r];
    if (crc != record.crc32) {
      throw CorruptError({.file = inputs[record.extent.file].display(),
                          .member = record.name,
                          .offset = record.extent.offset},
                         "CRC32 mismatch: the data has changed since it was saved");
    }
  }
}

}  // namespace dsckpt
