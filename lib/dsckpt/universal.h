// Universal Checkpoints: what DeepSpeed loads on another number of GPUs with
// "checkpoint": {"load_universal": true}.
#pragma once

#include <filesystem>

#include "dsckpt/checkpoint.h"
#include "dsckpt/export.h"
#include "dsckpt/job.h"

namespace dsckpt {

struct UniversalOptions {
  // Patterns of universal_checkpoint_info that fit no parameter are an error; else a note.
  bool strict = true;
  // The folder that it is to be written to, if that is known: a note then names the files beside
  // the shards that whoever resumes from the folder above it would miss there.
  std::filesystem::path output = {};
};

// The folder that DeepSpeed's ds_to_universal.py writes; `latest_universal` beside it will name it.
// Where that script is wrong or fails the result is what the engine held:
// lib/checkpoint/LAYOUTS.md, "Universal checkpoints". `source` has to be open with
// SourceOptions::optimizer_states, or of weights: these start with the states of the optimizer of
// SourceOptions::like, before its first step, or else torch's Adam. Throws UsageError for unused
// patterns and for what is a universal checkpoint already, UnsupportedError and InconsistentError
// for what the format cannot hold.
DSCKPT_EXPORT Job plan_universal(const Source& source, const UniversalOptions& options = {});

}  // namespace dsckpt
