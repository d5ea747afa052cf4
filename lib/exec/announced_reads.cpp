#include "exec/announced_reads.h"

#include <algorithm>
#include <filesystem>
#include <map>
#include <optional>

#include "exec/item_reader.h"

namespace dsckpt {
namespace {

constexpr uint64_t kSecondsAhead = 2;
constexpr uint64_t kFastestRate = uint64_t{1} << 40;  // bytes a second; as good as none

// Bytes [from, to) of `rows` laid end to end.
void add_rows(const Rows& rows, uint64_t count, uint64_t from, uint64_t to,
              std::vector<Extent>& extents) {
  if (from == to) return;
  if (count == 1 || rows.contiguous()) {
    extents.push_back({rows.file, rows.offset + from, to - from});
    return;
  }
  const auto place = [&](uint64_t at) {
    return rows.begin_of(at / rows.row_bytes) + at % rows.row_bytes;
  };
  if (ItemReader::is_dense(rows)) {
    const uint64_t begin = place(from);
    extents.push_back({rows.file, begin, place(to - 1) + 1 - begin});
    return;
  }
  while (from < to) {
    const uint64_t size = std::min(rows.row_bytes - from % rows.row_bytes, to - from);
    extents.push_back({rows.file, place(from), size});
    from += size;
  }
}

// Adds the reads for bytes [begin, end) of `item`, counted before a conversion.
void add_item(const CopyPlan& plan, const CopyItem& item, uint64_t begin, uint64_t end,
              std::vector<Extent>& extents) {
  const std::span<const Rows> sources = plan.sources_of(item);
  switch (item.op) {
    case Op::literal:
    case Op::zeros:
      return;
    case Op::copy:
    case Op::cast:
      return add_rows(item.source, item.rows, begin, end, extents);
    case Op::mean:
    case Op::same:
      for (const Rows& operand : sources) {
        extents.push_back({operand.file, operand.offset + begin, end - begin});
      }
      return;
    case Op::interleave: {
      uint64_t before = 0;  // in a row, bytes of the columns before this one
      for (const Rows& column : sources) {
        const auto in_column = [&](uint64_t at) {
          const uint64_t in_row = at % item.source.row_bytes;
          return at / item.source.row_bytes * column.row_bytes +
                 std::min(in_row - std::min(in_row, before), column.row_bytes);
        };
        add_rows(column, item.rows, in_column(begin), in_column(end), extents);
        before += column.row_bytes;
      }
      return;
    }
    case Op::low_rank: {
      // The factors are read when the first of its elements is needed, by whoever needs it.
      const uint64_t first = item.source.offset + begin / size_of(item.from);
      const uint64_t last = item.source.offset + end / size_of(item.from);
      for (const CopyItem& read : plan.update_items(plan.updates()[item.what].base)) {
        const uint64_t before = read.dst / sizeof(float);
        const uint64_t behind = read.dst_end() / sizeof(float);
        const uint64_t from = std::max(first, before);
        const uint64_t to = std::min(last, behind);
        const uint64_t size = size_of(read.from);
        if (from < to) {
          add_item(plan, read, (from - before) * size, (to - before) * size, extents);
        }
      }
      return;
    }
    case Op::weighted: {
      const uint64_t element = size_of(item.from);
      size_t index = 0;
      for (const PlannedTerm& term : plan.terms()[item.what]) {
        const uint64_t size = size_of(term.stored);
        for (uint32_t i = 0; i < term.operands; ++i, ++index) {
          extents.push_back({sources[index].file, sources[index].offset + begin / element * size,
                             (end - begin) / element * size});
        }
      }
      return;
    }
  }
}

}  // namespace

void extents_of(const CopyPlan& plan, const PlanUnit& unit, std::vector<Extent>& extents) {
  uint64_t skip = unit.skip;
  size_t index = unit.item;
  for (uint64_t at = unit.begin; at < unit.end; ++index, skip = 0) {
    const CopyItem& item = plan.items()[index];
    const uint64_t size = std::min(item.dst_end(), unit.end) - at;
    const uint64_t in_size = size_of(item.from);
    const uint64_t out_size = size_of(item.to);
    add_item(plan, item, skip / out_size * in_size, (skip + size) / out_size * in_size, extents);
    at += size;
  }
}

class AnnouncedReads::Announcer {
 public:
  Announcer(const CopyPlan& plan, const Units& units,
            std::span<const RecordUse::ExtraRead> extra_reads, std::vector<bool> is_of_reader,
            const std::vector<BatchRange>& done)
      : plan_(plan),
        units_(units),
        extra_reads_(extra_reads),
        is_of_reader_(std::move(is_of_reader)),
        done_(done) {}

  bool next(FarStep& step) {
    for (; batch_ < units_.batches(); ++batch_, unit_ = 0) {
      const std::span<const PlanUnit> batch = units_.batch(batch_);
      if (is_done()) continue;
      while (unit_ < batch.size()) {
        const PlanUnit& unit = batch[unit_++];
        step.number = static_cast<uint64_t>(&unit - units_.all().data());
        step.extents.clear();
        if (unit.out == PlanUnit::kNoOutput) {
          const Extent& extra = extra_reads_[unit.item].extent;
          step.extents.push_back({extra.file, extra.offset + unit.skip, unit.end});
        } else {
          extents_of(plan_, unit, step.extents);
        }
        std::erase_if(step.extents,
                      [&](const Extent& extent) { return !is_of_reader_[extent.file]; });
        if (!step.extents.empty()) return true;
      }
    }
    return false;
  }

 private:
  bool is_done() {
    while (range_ < done_.size() && done_[range_].last <= batch_) ++range_;
    return range_ < done_.size() && done_[range_].first <= batch_;
  }

  const CopyPlan& plan_;
  const Units& units_;
  const std::span<const RecordUse::ExtraRead> extra_reads_;
  const std::vector<bool> is_of_reader_;  // by FileId
  const std::vector<BatchRange> done_;
  size_t range_ = 0;  // of done_, the first that does not end before the batch
  size_t batch_ = 0;
  size_t unit_ = 0;  // in it
};

AnnouncedReads::AnnouncedReads(const CopyPlan& plan, const Units& units,
                               std::span<const RecordUse::ExtraRead> extra_reads,
                               const InputFiles& inputs, const std::vector<BatchRange>& done,
                               uint64_t rate)
    : units_(units) {
  if (!has_far_files()) return;
  std::map<std::shared_ptr<FarReader>, std::vector<std::filesystem::path>> files;  // by FileId
  for (FileId id = 0; id < inputs.size(); ++id) {
    if (inputs[id].encoding() != Encoding::plain) continue;
    const FarFile* const far = inputs[id].far();
    if (far == nullptr || far->reader->requests() == 0) continue;
    auto& of_reader = files[far->reader];
    of_reader.resize(inputs.size());
    of_reader[id] = far->path;
  }
  for (auto& [reader, paths] : files) {
    std::vector<bool> is_of_reader;
    for (const std::filesystem::path& path : paths) is_of_reader.push_back(!path.empty());
    FarSteps steps{.files = std::move(paths), .most = std::min(rate, kFastestRate) * kSecondsAhead};
    const auto announcer =
        std::make_shared<Announcer>(plan, units, extra_reads, is_of_reader, done);
    // Their number of bytes decides where requests end, so all are counted first.
    Announcer all(plan, units, extra_reads, is_of_reader, done);
    for (FarStep step; all.next(step);) {
      for (const Extent& extent : step.extents) steps.bytes += extent.size;
    }
    steps.next = [announcer](FarStep& step) { return announcer->next(step); };
    if (std::unique_ptr<FarReadAhead> ahead = reader->read_ahead(std::move(steps))) {
      readers_.push_back(reader);
      ahead_.push_back(std::move(ahead));
    }
  }
}

void AnnouncedReads::begin(const PlanUnit& unit) const {
  const auto number = static_cast<uint64_t>(&unit - units_.all().data());
  for (const auto& ahead : ahead_) ahead->begin(number);
}

void AnnouncedReads::end(const PlanUnit& unit) const {
  const auto number = static_cast<uint64_t>(&unit - units_.all().data());
  for (const auto& ahead : ahead_) ahead->end(number);
}

}  // namespace dsckpt
