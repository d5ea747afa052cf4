// What every conversion shares: the places where outputs may go, and from a plan to files.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "base/error.h"
#include "checkpoint/checkpoint.h"
#include "exec/executor.h"
#include "exec/io_choice.h"
#include "exec/staged_output.h"
#include "plan/copy_plan.h"

namespace dsckpt {

// Throws UsageError if `output` is, or lies inside, the folder that holds the checkpoint's shards.
void check_output_place(const Checkpoint& checkpoint, const std::filesystem::path& output);

// The checkpoint's tag as a folder in an output. Throws UsageError if it is no path inside of one.
std::string output_tag(const Checkpoint& checkpoint);

// Throws UsageError if `output` is no place for a whole folder: without a name, inside the folder
// of the shards, a file, or a folder that has something in it. With `force` a folder will do that
// does not hold the checkpoint, and of which `is_ours` knows every file, by the path of its content
// there, as written by `tool` before.
void check_folder_place(const Checkpoint& checkpoint, const std::filesystem::path& output,
                        bool force, const std::string& tool,
                        const std::function<bool(const std::filesystem::path&)>& is_ours);

// For plans that need the optimizer's states: CheckpointFacts::states_assigned is false, as it is
// of what was stripped.
UnsupportedError unassigned_states(const Checkpoint& checkpoint);

// The inputs as CopyPlan::validate() wants them.
std::vector<PlannedInput> planned_inputs(const InputFiles& inputs);

struct RunOptions {
  unsigned threads = 0;  // 0: as choose_io() says
  IoMode io = IoMode::automatic;
  // Check the CRC32 of every record of the checkpoint, not only of those that are read whole
  // anyway.
  bool verify = false;
  // Write packed files, at this level (FrameEncoder).
  std::optional<int> pack = {};
  // Of the outputs' contents, to be kept in packed files: by output, or none.
  std::vector<std::optional<Sha256Digest>> sha256 = {};
  StageOptions stage = {};  // but for `direct` and `packed`, which `io` and `pack` decide
};

// Runs the plan into `output` and commits. `records` of the inputs are checked on the way, with
// `options.verify` also those that the plan does not read. On any exception nothing of it is left
// behind.
ExecStats run_plan(const CopyPlan& plan, const InputFiles& inputs, std::vector<InputRecord> records,
                   const std::filesystem::path& output, Progress& progress,
                   const RunOptions& options = {});

}  // namespace dsckpt
