// The use case reshard: native ZeRO files for another number of data-parallel ranks, another stage
// or another layout, which DeepSpeed loads as its own.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "checkpoint/checkpoint.h"
#include "job/run_plan.h"
#include "plan/copy_plan.h"
#include "reshard/batch_plan.h"
#include "reshard/files.h"
#include "reshard/target.h"

namespace dsckpt {

struct ReshardPlan {
  CopyPlan plan;
  ReshardTarget target;
  std::vector<ReshardedGroup> groups;
  std::string tag;
  // Only if it was asked for.
  std::optional<BatchPlan> batch;
  std::vector<std::string> notes;
  // Of input files that are copied as they are: a pipeline's layers, experts.
  std::vector<InputRecord> copied_records;
};

// Plans OUTPUT/TAG/ with the shards, OUTPUT/latest, and copies of the files that lie beside the
// shards under `input` (neighbours.h). A checkpoint of several worlds is laid out world by world;
// files that do not depend on the number of ranks (reshard_copies.h) are copied. `source` is
// `input`, open with its optimizer states, or weights with a checkpoint that they are like
// (Checkpoint::from_weights), of whose training nothing is kept. With `plan_batch`,
// ds_config_dpN.json has the configuration with batch settings for the new ranks. The result is
// valid against `inputs`. Throws as reshard_target and lay_out_shards.
ReshardPlan plan_reshard(InputFiles& inputs, const Checkpoint& source,
                         const std::filesystem::path& input, const ReshardOptions& options,
                         bool plan_batch);

// Throws UsageError if `output` is not a place for the plan: inside the folder of the shards, a
// file, or a folder that has something in it; with `force` a folder that holds nothing but what
// such a plan writes will do, and is to be replaced.
void check_reshard_place(const Checkpoint& source, const ReshardPlan& plan,
                         const std::filesystem::path& output, bool force);

// Runs the plan into `output`, which appears as a whole. On an exception it is as it was.
ExecStats run_reshard(const ReshardPlan& plan, const InputFiles& inputs, const Checkpoint& source,
                      const std::filesystem::path& output, Progress& progress,
                      const RunOptions& options = {});

}  // namespace dsckpt
