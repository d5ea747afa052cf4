#include "exec/units.h"

#include <algorithm>
#include <iterator>

#include "exec/item_reader.h"

namespace dsckpt {
namespace {

// Outputs up to this size are written by one thread each.
constexpr uint64_t kBatchBytes = 16 << 20;

size_t pieces(uint64_t bytes, uint64_t longest) {
  return static_cast<size_t>((bytes + longest - 1) / longest);
}

}  // namespace

Units::Units(const CopyPlan& plan, std::span<const RecordUse::ExtraRead> extra_reads,
             uint64_t unit_bytes, const OutputCut& cut) {
  const uint64_t piece = ItemReader::piece_bytes(unit_bytes);
  size_t expected = 0;
  for (const PlannedFile& file : plan.outputs()) expected += pieces(file.size, unit_bytes);
  for (const auto& extra : extra_reads) expected += pieces(extra.extent.size, piece);
  // A part of a plan has fewer.
  if (cut.begin == 0 && cut.end == OutputCut().end) units_.reserve(expected);

  const std::vector<size_t> literals = cut_outputs(plan, unit_bytes, cut);
  for (size_t i = 0; i < extra_reads.size(); ++i) {
    const Extent& extent = extra_reads[i].extent;
    for (uint64_t at = 0; at < extent.size; at += piece) {
      units_.push_back({PlanUnit::kNoOutput, i, at, 0, std::min(piece, extent.size - at)});
    }
  }
  // Units of one small output are one thread's: two would wait for each other's writes. A large
  // output is everybody's.
  batches_.reserve(units_.size());
  for (size_t i = 0; i < units_.size(); ++i) {
    const OutputId out = units_[i].out;
    const bool alone = out != PlanUnit::kNoOutput && plan.outputs()[out].size <= kBatchBytes;
    if (i == 0 || !alone || units_[i - 1].out != out) batches_.push_back(i);
  }
  find_literals(plan, literals);
}

std::vector<size_t> Units::cut_outputs(const CopyPlan& plan, uint64_t unit_bytes,
                                       const OutputCut& cut) {
  const std::vector<CopyItem>& items = plan.items();
  std::vector<size_t> literals;
  for (size_t i = 0; i < items.size();) {
    const OutputId out = items[i].out;
    const uint64_t begin = i == 0 ? cut.begin : 0;
    const uint64_t end = out == items.back().out ? cut.end : ~uint64_t{0};
    PlanUnit unit{out, i, begin - items[i].dst, begin, begin};
    uint64_t room = begin / unit_bytes * unit_bytes + unit_bytes;  // where the unit should end
    for (; i < items.size() && items[i].out == out; ++i) {
      const CopyItem& item = items[i];
      if (item.op == Op::literal) literals.push_back(i);
      const uint64_t item_end = std::min(item.dst_end(), end);
      // It ends between two elements, never within one.
      const uint64_t element = size_of(item.to);
      for (; item_end > room; room += unit_bytes) {
        const uint64_t at = item.dst + (room - item.dst) / element * element;
        if (at <= unit.begin) continue;
        unit.end = at;
        add(unit);
        unit = {out, i, at - item.dst, at, at};
      }
      unit.end = item_end;
    }
    add(unit);
  }
  return literals;
}

void Units::find_literals(const CopyPlan& plan, const std::vector<size_t>& items) {
  // Returns whether the batch begins behind the begin of an item.
  const auto begins_behind = [&](size_t batch, size_t item) {
    const PlanUnit& first = units_[batches_[batch]];
    return first.out == PlanUnit::kNoOutput || first.item > item ||
           (first.item == item && first.skip > 0);
  };
  size_t batch = 0;
  for (const size_t item : items) {
    while (batch + 1 < batches_.size() && !begins_behind(batch + 1, item)) ++batch;
    if (literals_.empty() || literals_.back().batch != batch) literals_.push_back({batch, 0});
    literals_.back().bytes += plan.items()[item].dst_size();
  }
}

void Units::add(const PlanUnit& unit) {
  if (unit.end > unit.begin) units_.push_back(unit);
}

const PlanUnit& Units::with(OutputId out, uint64_t offset) const {
  return *std::partition_point(units_.begin(), units_.end(), [&](const PlanUnit& unit) {
    return unit.out < out || (unit.out == out && unit.end <= offset);
  });
}

const PlanUnit& Units::first_of_batch(const PlanUnit& unit) const {
  const auto index = static_cast<size_t>(&unit - units_.data());
  return units_[*std::prev(std::upper_bound(batches_.begin(), batches_.end(), index))];
}

uint64_t Units::bytes_of(const BatchRange& batches) const {
  uint64_t sum = 0;
  for (uint64_t index = batches.first; index < batches.last; ++index) {
    for (const PlanUnit& unit : batch(index)) sum += unit.end - unit.begin;
  }
  return sum;
}

}  // namespace dsckpt
