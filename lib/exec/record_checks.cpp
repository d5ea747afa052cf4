#include "exec/record_checks.h"

#include <algorithm>
#include <cstddef>
#include <iterator>
#include <numeric>
#include <span>
#include <stdexcept>
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
  uint64_t begin;
  uint64_t end;
  // The number of the item or operand that says which record it belongs to. kNone if its reader
  // does not checksum it.
  uint32_t reader;
  bool is_operand;
  bool strided;
};
static_assert(sizeof(Read) == 24);  // there may be millions

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

  // The places of records, close together in memory, and the first one of each file.
  std::vector<Extent> extents;
  std::vector<uint32_t> first_of;
  for (const InputRecord& record : records_) {
    const auto number = static_cast<uint32_t>(extents.size());
    while (first_of.size() <= record.extent.file) first_of.push_back(number);
    extents.push_back(record.extent);
  }
  first_of.push_back(static_cast<uint32_t>(extents.size()));
  // The first record that `read` has a byte of, and the one behind the last. The files of ranks are
  // alike: most reads are of the same record as the read before, of another file.
  uint32_t guess = 0;
  const auto first_record = [&](const Extent& read) {
    if (read.file + 1 >= first_of.size()) return static_cast<uint32_t>(extents.size());
    if (const uint32_t record = first_of[read.file] + guess; record < first_of[read.file + 1]) {
      const Extent& guessed = extents[record];
      if (guessed.offset <= read.offset && read.offset < guessed.end()) return record;
    }
    const auto begin = extents.begin() + first_of[read.file];
    auto record =
        std::upper_bound(begin, extents.begin() + first_of[read.file + 1], read.offset,
                         [](uint64_t offset, const Extent& each) { return offset < each.offset; });
    if (record != begin && std::prev(record)->end() > read.offset) --record;
    guess = static_cast<uint32_t>(record - begin);
    return first_of[read.file] + guess;
  };
  const auto last_record = [&](const Extent& read, uint32_t record) {
    while (record < extents.size() && extents[record].file == read.file &&
           extents[record].offset < read.end()) {
      ++record;
    }
    return record;
  };
  // Returns whether the reader of source number `k` of an item checksums it.
  const auto is_checksummed = [&](const CopyItem& item, size_t k) {
    switch (item.op) {
      case Op::copy:
      case Op::cast:
      case Op::weighted:
        return true;
      case Op::same:
        return k == 0;
      case Op::interleave:
        return plan.operands()[item.operand_begin + k].contiguous();
      default:
        return false;
    }
  };
  // Calls `take` with each extent that is read, and the Read that it is.
  const auto for_each_source = [&](auto&& take) {
    for (size_t i = 0; i < plan.items().size(); ++i) {
      const CopyItem& item = plan.items()[i];
      // Reads of updates are many, of parts and again: their records are read once more.
      if (item.op == Op::low_rank) {
        plan.for_each_source(item, [&](const Rows& rows, uint64_t count) {
          const Extent extent = rows.span(count);
          take(extent, Read{.begin = extent.offset,
                            .end = extent.end(),
                            .reader = kNone,
                            .is_operand = false,
                            .strided = count > 1});
        });
        continue;
      }
      const std::span<const Rows> sources = plan.sources_of(item);
      const bool is_operand = item.op == Op::interleave || item.op == Op::weighted;
      for (size_t k = 0; k < sources.size(); ++k) {
        const Extent extent = sources[k].span(item.rows);
        take(extent, Read{.begin = extent.offset,
                          .end = extent.end(),
                          .reader = !is_checksummed(item, k) ? kNone
                                    : is_operand ? static_cast<uint32_t>(item.operand_begin + k)
                                                 : static_cast<uint32_t>(i),
                          .is_operand = is_operand,
                          .strided = item.rows > 1 && item.op != Op::interleave});
      }
    }
  };
  // The reads of each record side by side: counted, and then put where they belong. Sorting them
  // all took three times as long.
  std::vector<size_t> last_of(records_.size() + 1, 0);
  std::vector<uint32_t> found;  // the first record of each source
  found.reserve(plan.items().size() + plan.operands().size());
  for_each_source([&](const Extent& extent, const Read&) {
    found.push_back(first_record(extent));
    const uint32_t last = last_record(extent, found.back());
    for (uint32_t record = found.back(); record < last; ++record) ++last_of[record + 1];
  });
  std::partial_sum(last_of.begin(), last_of.end(), last_of.begin());
  std::vector<Read> reads(last_of.back());
  auto first = found.begin();
  for_each_source([&](const Extent& extent, const Read& read) {
    const uint32_t last = last_record(extent, *first);
    for (uint32_t record = *first; record < last; ++record) {
      const Extent& whole = extents[record];
      Read& part = reads[last_of[record]++] = read;
      if (read.begin < whole.offset || read.end > whole.end()) part.reader = kNone;
      part.begin = std::max(read.begin, whole.offset);
      part.end = std::min(read.end, whole.end());
    }
    ++first;
  });
  found = {};

  // The reads of the plan in each record, and the bytes that it leaves out.
  struct Use {
    std::vector<Read>::const_iterator first;
    std::vector<Read>::const_iterator last;
    uint64_t left_out = 0;
  };
  std::vector<Use> uses(records_.size());
  std::vector<uint32_t> order;  // of those that are read
  auto next = reads.begin();
  const auto before = [](const Read& a, const Read& b) { return a.begin < b.begin; };
  for (uint32_t r = 0; r < records_.size(); ++r) {
    const auto last = reads.begin() + static_cast<std::ptrdiff_t>(last_of[r]);
    if (!std::is_sorted(next, last, before)) std::sort(next, last, before);
    Use& use = uses[r];
    use.first = next;
    use.last = next = last;
    Gaps unread(records_[r].extent);
    for (auto read = use.first; read != use.last; ++read) unread.add(read->begin, read->end);
    for (const Extent& gap : unread.finish()) use.left_out += gap.size;
    if (use.first != use.last) order.push_back(r);
  }
  std::stable_sort(order.begin(), order.end(),
                   [&](uint32_t a, uint32_t b) { return uses[a].left_out < uses[b].left_out; });
  uint64_t besides = std::max(kMostBesides, plan.bytes_read() / kShareBesides);
  to_check_.assign(records_.size(), all);
  for (const uint32_t r : order) {
    const bool is_little = uses[r].left_out <= tolerable_gap(records_[r].extent.size);
    if (!all && !is_little && uses[r].left_out > besides) {
      ++unchecked_;
      continue;
    }
    besides -= std::min(besides, uses[r].left_out);
    to_check_[r] = true;
  }

  for (uint32_t r = 0; r < records_.size(); ++r) {
    if (!to_check_[r]) continue;
    ++checked_;
    // Rows that lie apart, and bytes that an earlier read has, are read extra where nothing else
    // checksums them.
    Gaps unreported(records_[r].extent);
    for (auto read = uses[r].first; read != uses[r].last; ++read) {
      if (read->reader == kNone || read->strided || read->begin < unreported.reached()) continue;
      (read->is_operand ? use_.of_operand : use_.of_item)[read->reader] = r;
      unreported.add(read->begin, read->end);
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
    if (!to_check_[r]) continue;
    const InputRecord& record = records_[r];
    const auto whole = pieces_[r].find(record.extent.offset);
    if (pieces_[r].size() != 1 || whole == pieces_[r].end() ||
        whole->second.size != record.extent.size) {
      throw std::logic_error("nobody has checked all of the record " + record.name);
    }
    if (whole->second.crc != record.crc32) {
      throw CorruptError({.file = inputs[record.extent.file].display(),
                          .member = record.name,
                          .offset = record.extent.offset},
                         "CRC32 mismatch: the data has changed since it was saved")
          .with_hint(
              "`ckpt-inspect verify` lists everything that is wrong; with the file moved away, "
              "zero-to-fp32 --allow-missing writes the tensors that are whole without it");
    }
  }
}

}  // namespace dsckpt
