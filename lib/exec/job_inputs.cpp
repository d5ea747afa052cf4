#include "exec/job_inputs.h"

#include <utility>

#include "dsckpt/error.h"

namespace dsckpt {

JobInputs::JobInputs(RankJob job) : job_(std::move(job)), planned_(job_.inputs.size()) {
  for (FileId file = 0; file < job_.inputs.size(); ++file) {
    known_.emplace(std::pair(job_.inputs[file].path, job_.inputs[file].display), file);
  }
}

FileId JobInputs::number_of(const InputFile& file) {
  const auto next = static_cast<FileId>(job_.inputs.size());
  job_.inputs.push_back(RankJob::Input::of(file));
  const RankJob::Input& added = job_.inputs.back();
  const auto [known, is_new] = known_.emplace(std::pair(added.path, added.display), next);
  if (is_new) return next;
  const RankJob::Input& before = job_.inputs[known->second];
  if (before.is_same(file)) {
    job_.inputs.pop_back();
  } else if (known->second < planned_) {
    // A finding of verify is about a file as it is, and this is about the plan.
    const IoError error = other_input(before, file, false);
    throw UsageError(error.what()).with_hint(error.hint());
  } else {
    known->second = next;
  }
  return known->second;
}

}  // namespace dsckpt
