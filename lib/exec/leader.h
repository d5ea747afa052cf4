// Leader: rank 0 of a group that runs a plan. It hands out portions, does some of them itself, and
// has the last word on checksums.
#pragma once

#include "dsckpt/run.h"
#include "exec/executor.h"
#include "exec/output_sums.h"
#include "exec/portion.h"
#include "exec/shares.h"
#include "exec/staged_output.h"
#include "group/group.h"
#include "io/input_file.h"
#include "plan/copy_plan.h"

namespace dsckpt {

// What execute_in_group() needs besides what execute() does.
struct GroupWork {
  // Where all ranks write (StageOptions::shared), after prepare().
  StagedOutput& staged;
  // In front of it, if what is written is to be read back or kept; else nullptr. It is given what
  // all ranks have written.
  OutputSums* sums = nullptr;
  std::optional<int> pack = {};                          // PackedOutput's level
  std::vector<std::optional<Sha256Digest>> sha256 = {};  // PackedOutput's
  // With sums, wait after each portion until it is on the disk: what ExecOptions::save is told of
  // is.
  bool sync_portions = false;
  // Wait for the disk before a rank says that it has nothing left to do.
  bool sync_last = false;
  uint64_t cut_bytes = ShareOptions().cut_bytes;  // ShareOptions::cut_bytes
};

// execute(), by all ranks of `group`: the same bytes and the same errors, which name the rank. On
// any exception the others have stopped, or are lost; RunStats::bytes_stored is what all have
// written.
RunStats execute_in_group(Group& group, const CopyPlan& plan, const InputFiles& inputs,
                          const GroupWork& work, Progress& progress, const ExecOptions& options);

}  // namespace dsckpt
