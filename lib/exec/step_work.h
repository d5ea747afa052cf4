// StepWork: the middle step of a conversion in steps (step_files.h). Any number of processes do it,
// anywhere and at any time, without communication.
//
// If two processes do a portion, they write the same bytes twice. A process that comes too late, or
// wakes up after others have done its work and committed, finds no file and can make none.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

#include "dsckpt/run.h"
#include "exec/piece_task.h"
#include "exec/rank_inputs.h"
#include "exec/step_files.h"

namespace dsckpt {

// Share `number` of `of`: portions that follow each other.
struct StepShare {
  size_t number = 0;
  size_t of = 1;
};

struct StepOptions {
  unsigned threads = 0;  // as ExecOptions'
  // The share is done first, from its front, then the others' from their ends. Nothing: the process
  // does all portions, in an order of its own.
  std::optional<StepShare> share = {};
  bool only_share = false;  // nothing of the others'
  AnswerTask answer = {};   // for tasks that are not portions
  // A rank with a share takes its portions (take_portion()), then the last one of whoever has most
  // left. It does none that another has taken. nullptr: no rank.
  const WorkingRank* rank = nullptr;
};

struct StepsDone {
  size_t portions = 0;  // by this process
  uint64_t bytes = 0;
  size_t left = 0;             // that have no result yet
  bool is_taken_over = false;  // somebody commits, or has abandoned it
};

// Does the portions that have no result. `program` must be the plan's. Throws UsageError for a plan
// of another program. Throws the errors of a portion; a process that is not a rank saves them in
// the folder first. Throws saved errors of other processes about a faulty input.
StepsDone work_on_steps(const Folder& folder, const std::string& program,
                        const StepOptions& options, Progress& progress);

// The number of portions that have a result.
size_t results_in(const Folder& folder, const StepPlan& plan);

}  // namespace dsckpt
