// ShareForecast: the expected work of each of several ranks, computed by one process.
#pragma once

#include <cstdint>
#include <vector>

#include "exec/record_checks.h"
#include "exec/shares.h"
#include "plan/copy_plan.h"

namespace dsckpt {

// For a rank that does exactly its share, without help to or from others.
struct RankForecast {
  uint64_t bytes_written = 0;
  uint64_t bytes_read = 0;      // also only to be checked
  uint64_t bytes_done = 0;      // written, or read only to be checked: what shares are measured by
  uint64_t outputs = 0;         // files
  uint64_t shared_outputs = 0;  // of these, those that another rank writes, too
  uint64_t inputs = 0;          // files
  uint64_t portions = 0;
  uint64_t plan_bytes = 0;  // of its portions, in files that rank 0 writes and it reads
};

struct ShareForecast {
  std::vector<RankForecast> ranks = {};
  uint64_t outputs = 0;         // files
  uint64_t shared_outputs = 0;  // of these, those that several ranks write
  uint64_t disk_rate = 0;       // bytes a second that a rank reads and writes; 0: unknown

  // The largest share divided by the mean; 1 if there is nothing to do.
  double balance() const;
  uint64_t plan_bytes() const;  // of all ranks
  // The time that a rank reads and writes, at the disk's rate; 0 if the rate is unknown.
  double seconds(const RankForecast& rank) const;
  // The time until the last rank has done its share; 0 as above.
  double seconds() const;
};

// Forecasts a run by ranks: the same units, shares and portions, which are cut and encoded only to
// count them. `use` says which input is checked (RecordChecks).
ShareForecast forecast_shares(const CopyPlan& plan, const RecordUse& use, uint64_t unit_bytes,
                              const ShareOptions& options);

}  // namespace dsckpt
