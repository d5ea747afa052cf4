// Units: a plan, cut into pieces that one thread reads and writes at once.
//
// A unit is a contiguous range of one output, or of a record that is read only to be checked. It
// ends between two elements, at a multiple of the units' size or just before. A batch is a group of
// units that one thread takes at once. Batches follow the plan's order, with the extra reads last.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "exec/record_checks.h"
#include "plan/copy_plan.h"

namespace dsckpt {

// Bytes [begin, end) of an output, from `skip` bytes into item `item` on. For an extra read `out`
// is kNoOutput, `item` is its index, and it begins `skip` bytes into it.
struct PlanUnit {
  static constexpr OutputId kNoOutput = ~OutputId{0};
  OutputId out;
  size_t item;
  uint64_t skip;
  uint64_t begin;
  uint64_t end;
};

// Batches [first, last).
struct BatchRange {
  uint64_t first = 0;
  uint64_t last = 0;
};

// The begin of a plan's part in its first output, and its end in the last.
struct OutputCut {
  uint64_t begin = 0;
  uint64_t end = ~uint64_t{0};
};

class Units {
 public:
  // `unit_bytes`: a power of two, at least a page.
  Units(const CopyPlan& plan, std::span<const RecordUse::ExtraRead> extra_reads,
        uint64_t unit_bytes, const OutputCut& cut = {});

  size_t batches() const { return batches_.size(); }
  std::span<const PlanUnit> batch(size_t index) const {
    const size_t end = index + 1 < batches_.size() ? batches_[index + 1] : units_.size();
    return std::span(units_).subspan(batches_[index], end - batches_[index]);
  }
  // The bytes that they write, or read only to check them.
  uint64_t bytes_of(const BatchRange& batches) const;
  uint64_t bytes() const { return bytes_of({0, batches()}); }
  std::span<const PlanUnit> all() const { return units_; }
  // The unit that has the byte at `offset` of an output. There must be one.
  const PlanUnit& with(OutputId out, uint64_t offset) const;
  // The first unit of the batch of `unit`, one of all().
  const PlanUnit& first_of_batch(const PlanUnit& unit) const;

  // Bytes of the plan's literals that begin in a batch.
  struct Literals {
    uint64_t batch;
    uint64_t bytes;
  };
  // Only batches with literals, in their order.
  std::span<const Literals> literals() const { return literals_; }

 private:
  // Returns the items that are literals.
  std::vector<size_t> cut_outputs(const CopyPlan& plan, uint64_t unit_bytes, const OutputCut& cut);
  void find_literals(const CopyPlan& plan, const std::vector<size_t>& items);
  void add(const PlanUnit& unit);

  std::vector<PlanUnit> units_;
  std::vector<size_t> batches_;  // the first unit of each
  std::vector<Literals> literals_;
};

}  // namespace dsckpt
