// Dispatch: rank 0 of a group hands out tasks, does some itself, and has all stop where one fails.
//
// Tasks are runs of numbered batches, of a plan (leader.h) or of what is only read and looked at;
// shares.h says who gets which. This knows neither what is in them nor what comes of them.
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

// What a group does together.
class SharedWork {
 public:
  virtual ~SharedWork() = default;

  // A task for another rank, as its follower understands it. Any thread.
  virtual std::string task(const BatchRange& batches) const = 0;
  // Does this rank's own tasks until `take` gives none; `done` is told what another rank would
  // answer. Both may be called by any thread. `progress` counts what this rank does; it is
  // cancelled when all are to stop.
  using Take = std::function<std::optional<BatchRange>()>;
  using OnDone = std::function<void(std::string_view)>;
  virtual void work_here(const Take& take, const OnDone& done, Progress& progress) = 0;

  struct Done {
    uint64_t bytes_done = 0;
    uint64_t bytes_read = 0;
  };
  // Takes what came of a task, any rank's. One thread at a time.
  virtual Done absorb(std::string_view result) = 0;
};

// Tells all ranks the job and has them do it; returns when nothing is under way. Adds to
// progress.bytes_done, and names the slowest rank there. Throws what any rank has thrown, with its
// name; the others have stopped then, or are lost, and can be told another job.
std::vector<RankStats> dispatch(Group& group, const RankJob& job, Shares& shares, SharedWork& work,
                                Progress& progress);

}  // namespace dsckpt
