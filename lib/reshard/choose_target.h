// How the run that resharded files are for is chosen.
#pragma once

#include <string>
#include <vector>

#include "checkpoint/checkpoint.h"
#include "reshard/run_facts.h"
#include "reshard/target.h"

namespace dsckpt {

// The target for the run that `source` describes, or `like` if that is not null (`options.like` is
// not looked at). It depends on its arguments alone, and borrows their strings and values. The
// warnings for the new run are added to `notes`. Throws UsageError for options that contradict each
// other or the checkpoint. Throws UnsupportedError for values that cannot be cut anew, or that
// DeepSpeed could not load. Throws InconsistentError for parameters that only one of `like` and the
// source has: see refusals.h.
ReshardTarget choose_target(const RunFacts& source, const RunFacts* like,
                            const TargetOptions& options, std::vector<std::string>& notes);

// The same of the checkpoints `source` and `options.like`.
ReshardTarget reshard_target(const Checkpoint& source, const TargetOptions& options,
                             std::vector<std::string>& notes);

}  // namespace dsckpt
