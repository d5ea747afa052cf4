// Dispatch: rank 0 of a group hands out tasks, does some itself, and stops all ranks if one fails.
//
// Tasks are runs of numbered batches, either of a plan (leader.h) or of files that are only read
// and examined. shares.h decides which rank gets which. Dispatch knows neither the contents of
// tasks nor their results.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "dsckpt/run.h"
#include "exec/rank_words.h"
#include "exec/shares.h"
#include "exec/units.h"
#include "group/group.h"

namespace dsckpt {

// Work that the ranks of a group share.
class SharedWork {
 public:
  virtual ~SharedWork() = default;

  // A task for another rank, in the form that its follower reads. Any thread.
  virtual std::string task(const BatchRange& batches) const = 0;
  // Does this rank's own tasks until `take` gives none. Tells `done` the answer that another rank
  // would send. Any thread may call both. `progress` counts this rank's work; it is cancelled when
  // all ranks must stop.
  using Take = std::function<std::optional<BatchRange>()>;
  using OnDone = std::function<void(std::string_view)>;
  virtual void work_here(const Take& take, const OnDone& done, Progress& progress) = 0;

  struct Done {
    uint64_t bytes_done = 0;
    uint64_t bytes_read = 0;
  };
  // Takes the result of a task, of any rank. One thread at a time.
  virtual Done absorb(std::string_view result) = 0;
};

// Sends the job to all ranks and lets them work; returns when no task is running. Adds to
// progress.bytes_done, and sets the slowest rank there. Throws the exception of any rank, with its
// name. The other ranks have then stopped, or are lost, and can get another job.
std::vector<RankStats> dispatch(Group& group, const RankJob& job, Shares& shares, SharedWork& work,
                                Progress& progress);

}  // namespace dsckpt
