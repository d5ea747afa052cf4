// The use case strip: the same checkpoint in fewer bytes, without what nobody needs any more.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "checkpoint/checkpoint.h"
#include "job/run_plan.h"
#include "plan/copy_plan.h"

namespace dsckpt {

// What a checkpoint is stripped to.
enum class Keep : uint8_t {
  // The weights: masters, buffers, frozen parameters, what is tied, and all that is no tensor. The
  // optimizer's states are left out, and the model's own copies of weights that there are masters
  // of. In the pickles meta tensors (format/meta_tensor.h) take their places, and what is stripped
  // says so (keys::kStripped). At stage 0 all weights of the model stay.
  weights,
  // All that DeepSpeed loads. Bytes of storages that no tensor reaches are left out.
  resume,
};
const char* to_string(Keep keep);

// A file of the checkpoint, by its path in the output folder.
struct StrippedFile {
  std::string path;
  uint64_t before = 0;  // bytes of the content, also where it is stored packed
  uint64_t after = 0;   // 0 if it is left out
};

struct StripPlan {
  CopyPlan plan;
  Keep keep = Keep::weights;
  std::string tag;
  std::vector<StrippedFile> files;  // by path
  std::vector<std::string> notes;
  std::vector<InputRecord> records;  // of the input, for the run's checks

  uint64_t bytes_before() const;
  uint64_t bytes_after() const;
};

// Plans OUTPUT/TAG/ with the same files, OUTPUT/latest (latest_universal of a universal
// checkpoint), and copies of what lies beside the shards under `input` (neighbours.h). Files that
// nothing is left out of are copied byte for byte; others are what torch.save would write, also
// where they were of the legacy form. Every tensor that stays keeps its value, shape, dtype, flags
// and whom it shares its storage with. `source` is `input`, open with its optimizer states for
// Keep::resume and without for Keep::weights. The result is valid against `inputs`. Throws as
// open_shards(); UnsupportedError for what cannot be written anew, with Keep::weights only.
StripPlan plan_strip(InputFiles& inputs, const Checkpoint& source,
                     const std::filesystem::path& input, Keep keep);

// Throws UsageError if `output` is not a place for the plan (check_folder_place).
void check_strip_place(const Checkpoint& source, const StripPlan& plan,
                       const std::filesystem::path& output, bool force);

// Runs the plan into `output`, which appears as a whole. On an exception it is as it was.
ExecStats run_strip(const StripPlan& plan, const InputFiles& inputs,
                    const std::filesystem::path& output, Progress& progress,
                    const RunOptions& options = {});

}  // namespace dsckpt
