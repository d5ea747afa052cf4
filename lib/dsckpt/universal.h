// Universal checkpoints, which DeepSpeed loads on any number of GPUs with "checkpoint":
// {"load_universal": true}.
#pragma once

#include <filesystem>

#include "dsckpt/checkpoint.h"
#include "dsckpt/export.h"
#include "dsckpt/job.h"

namespace dsckpt {

struct UniversalOptions {
  // If true, patterns of universal_checkpoint_info that fit no parameter are an error; else a note.
  bool strict = true;
  // The output folder, if it is known. A note then names the files beside the shards that a run
  // resumed from the folder above it would miss.
  std::filesystem::path output = {};
};

// Plans the folder that DeepSpeed's ds_to_universal.py writes; `latest_universal` beside it will
// name it. Where that script is wrong or fails, the result is the state that the engine held:
// lib/checkpoint/LAYOUTS.md, "Universal checkpoints". The source must be open with
// SourceOptions::optimizer_states, or be weights. Weights start with the optimizer states of
// SourceOptions::like before its first step, or else of torch's Adam. Throws UsageError for unused
// patterns, and for an input that is already a universal checkpoint. Throws UnsupportedError and
// InconsistentError for data that the format cannot hold.
DSCKPT_EXPORT Job plan_universal(const Source& source, const UniversalOptions& options = {});

}  // namespace dsckpt
