// StepWork: the middle one of the steps of a conversion (step_files.h), as any number of processes
// do it, anywhere and at any time, without a word to each other.
//
// A portion that two of them do is written twice, with the same bytes. Who comes too late, or goes
// on when others have done its work and committed it, finds no file any more, and can make none.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>

#include "dsckpt/run.h"
#include "exec/step_files.h"

namespace dsckpt {

// Share `number` of `of`: portions that follow each other.
struct StepShare {
  size_t number = 0;
  size_t of = 1;
};

struct StepOptions {
  unsigned threads = 0;  // as ExecOptions'
  // What is done first, from its front; then the others' from their ends. Nothing: all of it, in an
  // order of this process's own.
  std::optional<StepShare> share = {};
  bool only_share = false;  // nothing of the others'
};

struct StepsDone {
  size_t portions = 0;  // by this process
  uint64_t bytes = 0;
  size_t left = 0;             // that have no result yet
  bool is_taken_over = false;  // somebody commits, or has abandoned it
};

// Does what has no result. `program` must be the plan's. Throws UsageError for a plan of another
// program; what a portion throws, which the folder then says, too; and what another process has
// said there of an input that is at fault.
StepsDone work_on_steps(const Folder& folder, const std::string& program,
                        const StepOptions& options, Progress& progress);

// How many portions have a result.
size_t results_in(const Folder& folder, const StepPlan& plan);

}  // namespace dsckpt
