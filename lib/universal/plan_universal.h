// The use case to-universal: from a checkpoint to DeepSpeed's Universal Checkpoint.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "checkpoint/checkpoint.h"
#include "job/run_plan.h"
#include "plan/copy_plan.h"
#include "universal/start.h"

namespace dsckpt {

struct UniversalOptions {
  // Patterns of universal_checkpoint_info that fit no parameter are an error; else a note.
  bool strict = true;
  // Of weights (CheckpointFacts::from_weights): what there is beside the masters.
  InitialStates initial = {};
};

struct UniversalPlan {
  // One folder in the result: a parameter and the files it has, without ".pt".
  struct Entry {
    std::string name;
    Shape shape;
    std::vector<std::string> files;
  };
  CopyPlan plan;
  std::vector<Entry> entries;
  std::vector<std::string> notes;
  std::vector<InputRecord> model_records;  // of the model-states files, to be checked
};

// Plans the folder that ds_to_universal.py writes; the result is valid against `inputs`.
// `checkpoint` has to be open with its optimizer states, or of weights. Where that script is wrong
// or fails the result is what the engine held: lib/checkpoint/LAYOUTS.md, "Universal checkpoints".
// Throws UsageError for unused patterns and for what is a universal checkpoint already,
// UnsupportedError and InconsistentError for what the format cannot hold.
UniversalPlan plan_universal(InputFiles& inputs, const Checkpoint& checkpoint,
                             const UniversalOptions& options);

// Throws UsageError if `output` is not a place for a universal checkpoint: inside the folder of the
// shards, a file, or a folder that has something in it; with `force` a folder that holds nothing
// but a universal checkpoint will do, and is to be replaced.
void check_universal_place(const Checkpoint& checkpoint, const std::filesystem::path& output,
                           bool force);

// Runs the plan into `output`, which appears as a whole, and then replaces `latest_universal` in
// the folder above it. On an exception before that both are as they were.
ExecStats run_universal(const UniversalPlan& plan, const InputFiles& inputs,
                        const Checkpoint& checkpoint, const std::filesystem::path& output,
                        Progress& progress, const RunOptions& options = {});

}  // namespace dsckpt
