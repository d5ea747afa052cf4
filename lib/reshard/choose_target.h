// How the run that resharded files are for is chosen.
#pragma once

#include <string>
#include <vector>

#include "checkpoint/checkpoint.h"
#include "reshard/run_facts.h"
#include "reshard/target.h"

namespace dsckpt {

// The target of a run that `source` is known of, or the run that `like` is known of if that is not
// null (`options.like` is not looked at). A function of its arguments alone, which it borrows
// strings and values of; `notes` gets what the new run has to look out for. Throws UsageError for
// options that contradict each other or the checkpoint, UnsupportedError for what cannot be cut
// anew or DeepSpeed could not load, InconsistentError for parameters that `like` has and the source
// has not, or the other way round: see refusals.h.
ReshardTarget choose_target(const RunFacts& source, const RunFacts* like,
                            const TargetOptions& options, std::vector<std::string>& notes);

// The same of the checkpoints `source` and `options.like`.
ReshardTarget reshard_target(const Checkpoint& source, const TargetOptions& options,
                             std::vector<std::string>& notes);

}  // namespace dsckpt
