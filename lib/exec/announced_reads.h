// AnnouncedReads: tells the readers of far files (io/far_files.h) which ranges come next, in the
// order of the plan. So they can read ahead.
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

// Appends the reads that an ItemReader makes for `unit`, in its order. Rows that it reads in one go
// include the bytes between them.
void extents_of(const CopyPlan& plan, const PlanUnit& unit, std::vector<Extent>& extents);

// Announces the units of one run, from its first batch on. Does nothing if no file is far.
// Compressed files are not announced, since the plan does not know their bytes. Any thread. All
// arguments must outlive it.
class AnnouncedReads {
 public:
  // Skips the batches in `done`. With a rate in bytes a second, reads ahead no more than two
  // seconds' worth.
  AnnouncedReads(const CopyPlan& plan, const Units& units,
                 std::span<const RecordUse::ExtraRead> extra_reads, const InputFiles& inputs,
                 const std::vector<BatchRange>& done, uint64_t rate);

  // Call these before a unit is read, and after.
  void begin(const PlanUnit& unit) const;
  void end(const PlanUnit& unit) const;

 private:
  // The progress of one reader's announcements.
  class Announcer;

  const Units& units_;
  std::vector<std::shared_ptr<FarReader>> readers_;  // outlive what they read ahead
  std::vector<std::unique_ptr<FarReadAhead>> ahead_;
};

}  // namespace dsckpt
