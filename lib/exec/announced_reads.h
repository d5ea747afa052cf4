// AnnouncedReads: what a run is going to read of far files (io/far_files.h), told to their readers
// in the order of the plan, so that they read it ahead.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "base/extent.h"
#include "exec/units.h"
#include "io/far_files.h"
#include "io/input_file.h"
#include "plan/copy_plan.h"

namespace dsckpt {

// Appends what an ItemReader reads for `unit`, in its order; rows that it reads in one go with what
// is between them.
void extents_of(const CopyPlan& plan, const PlanUnit& unit, std::vector<Extent>& extents);

// Of the units of one run, from its first batch on. Nothing is done where no file is far, or
// compressed: of such a one the plan does not know the bytes. Any thread. All that it is given must
// outlive it.
class AnnouncedReads {
 public:
  // Without batches that are `done`. With a rate of bytes a second, no more than what two seconds
  // move is read ahead.
  AnnouncedReads(const CopyPlan& plan, const Units& units,
                 std::span<const RecordUse::ExtraRead> extra_reads, const InputFiles& inputs,
                 const std::vector<BatchRange>& done, uint64_t rate);

  // Before a unit is read, and after.
  void begin(const PlanUnit& unit) const;
  void end(const PlanUnit& unit) const;

 private:
  // Where one reader's announcements have come to.
  class Announcer;

  const Units& units_;
  std::vector<std::shared_ptr<FarReader>> readers_;  // outlive what they read ahead
  std::vector<std::unique_ptr<FarReadAhead>> ahead_;
};

}  // namespace dsckpt
