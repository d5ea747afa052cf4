// ShareForecast: what each rank of a group would do of a run, found out by one process.
#pragma once

#include <cstdint>
#include <vector>

#include "exec/record_checks.h"
#include "exec/shares.h"
#include "plan/copy_plan.h"

namespace dsckpt {

// Of a rank that does its share: it helps nobody, and nobody helps it.
struct RankForecast {
  uint64_t bytes_written = 0;
  uint64_t bytes_read = 0;      // also only to be checked
  uint64_t bytes_done = 0;      // written, or read only to be checked: what shares are measured by
  uint64_t outputs = 0;         // files
  uint64_t shared_outputs = 0;  // of these, those that another rank writes, too
  uint64_t inputs = 0;          // files
  uint64_t portions = 0;
  uint64_t plan_bytes = 0;  // of its portions, as they are sent; rank 0 is sent none
};

// What is known of the machines, in bytes a second; 0: nothing.
struct StatedRates {
  uint64_t disk = 0;     // that a rank reads and writes
  uint64_t network = 0;  // that rank 0 sends
};

struct ShareForecast {
  std::vector<RankForecast> ranks = {};
  uint64_t outputs = 0;         // files
  uint64_t shared_outputs = 0;  // of these, those that several ranks write
  StatedRates rates = {};

  // The largest share over the mean; 1 where there is nothing to do.
  double balance() const;
  uint64_t plan_bytes() const;  // that rank 0 sends
  // That a rank reads and writes, at the disk's rate; 0 without one.
  double seconds(const RankForecast& rank) const;
  // Until the last rank has done its share, and rank 0, meanwhile, has sent all of them.
  double seconds() const;
};

// What execute_in_group() would have the ranks do: the same units, shares and portions, which are
// cut and encoded to be counted. `use`: what is checked of the input (RecordChecks).
ShareForecast forecast_shares(const CopyPlan& plan, const RecordUse& use, uint64_t unit_bytes,
                              const ShareOptions& options);

}  // namespace dsckpt
