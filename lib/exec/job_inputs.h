// JobInputs: the numbers that tasks have for their files, which a RankJob lists.
#pragma once

#include <cstddef>
#include <map>
#include <string>
#include <utility>

#include "exec/rank_job.h"
#include "io/input_file.h"

namespace dsckpt {

// One thread.
class JobInputs {
 public:
  // Begins with the inputs of a `job` that another process has planned.
  explicit JobInputs(RankJob job = {.tasks = Tasks::pieces});

  // A new file gets the next number. Throws UsageError for a planned one that has changed since.
  FileId number_of(const InputFile& file);
  const RankJob& job() const { return job_; }

 private:
  RankJob job_;
  const size_t planned_;
  std::map<std::pair<std::string, std::string>, FileId> known_ = {};  // by path and display
};

}  // namespace dsckpt
