// The plans of `ckpt-pack keep`: a checkpoint as it is, packed or stripped, with texts beside it
// that say what it is.
#pragma once

#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "dsckpt/job.h"
#include "dsckpt/pack.h"
#include "io/input_file.h"
#include "job/neighbours.h"
#include "plan/copy_plan.h"

namespace dsckpt {

// The files that come along with the checkpoint's own.
struct KeptBeside {
  std::vector<Neighbour> files = {};
  // A small file of the output. Its content may depend on the files before it.
  struct Text {
    std::string path;
    std::function<std::string(const std::vector<JobFile>& before)> content;
  };
  // They come last, in this order: a reader who sees the last one sees all.
  std::vector<Text> texts = {};
};
void lay_out_beside(InputFiles& inputs, const KeptBeside& beside, PlanBuilder& plan);

// All files of `folder`, at any depth, in the folder `name` of the output, or with "" in the output
// itself. Names that begin with kKeepPrefix are left out. Records of files that are archives are
// checked while they are copied. `packs`: they are to be packed (RunOptions::pack). Throws as
// plan_pack().
Job plan_kept(const std::filesystem::path& folder, const std::string& name,
              const KeptBeside& beside, bool packs, Progress* progress = nullptr);

// These alone, beside what is in the output.
Job plan_beside(const KeptBeside& beside);

// plan_strip() with these.
Job plan_kept_strip(const Source& source, Keep keep, const KeptBeside& beside);

}  // namespace dsckpt
