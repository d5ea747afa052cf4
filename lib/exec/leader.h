// Leader: rank 0 of a group that runs a plan. It hands out portions, does some of them itself, and
// decides about checksums.
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

// The arguments of execute_in_group() besides those of execute().
struct GroupWork {
  // The place where all ranks write (StageOptions::shared), after prepare().
  StagedOutput& staged;
  // The sums in front of it, if the output is to be read back or kept; else nullptr. It gets the
  // writes of all ranks.
  OutputSums* sums = nullptr;
  std::optional<int> pack = {};                          // PackedOutput's level
  std::vector<std::optional<Sha256Digest>> sha256 = {};  // PackedOutput's
  // With sums, sync each portion to disk, so that ExecOptions::save only reports synced progress.
  bool sync_portions = false;
  // Sync to disk before a rank says that it has nothing left to do.
  bool sync_last = false;
  uint64_t cut_bytes = ShareOptions().cut_bytes;  // ShareOptions::cut_bytes
};

// execute(), by all ranks of `group`: the same bytes and the same errors, which name the rank.
// After an exception the other ranks have stopped, or are lost. RunStats::bytes_stored counts the
// writes of all ranks.
RunStats execute_in_group(Group& group, const CopyPlan& plan, const InputFiles& inputs,
                          const GroupWork& work, Progress& progress, const ExecOptions& options);

}  // namespace dsckpt
