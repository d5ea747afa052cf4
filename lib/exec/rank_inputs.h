// RankInputs: the inputs of a run, opened by one of its ranks.
#pragma once

#include <cstddef>
#include <functional>
#include <map>
#include <memory>
#include <vector>

#include "exec/rank_job.h"
#include "io/input_file.h"

namespace dsckpt {

class FileClient;

// A launcher's rank that works (rank_work.h).
struct WorkingRank {
  int number = 0;
  std::shared_ptr<FileClient> files = {};  // how it reads what only other nodes have
  // Called when it begins a portion, one at a time; may be empty.
  std::function<void(size_t portion)> on_begin = {};
};

// Opens a job's inputs when they are needed. One thread at a time; any thread may use the files.
class RankInputs {
 public:
  // Both must outlive it. `rank`: of a launcher; nullptr: of steps, where all see all files.
  RankInputs(const RankJob& job, const WorkingRank* rank) : job_(job), rank_(rank) {}

  // Returns this rank's number for an input of the job. Throws IoError if the file differs from the
  // one on rank 0, or from the one that was planned.
  FileId open(FileId input);
  std::vector<FileId> open(const std::vector<FileId>& inputs);
  const InputFiles& files() const { return files_; }
  // Throws as InputFile does.
  void check_unchanged() const;

 private:
  FileId add(const RankJob::Input& input);

  const RankJob& job_;
  const WorkingRank* const rank_;
  InputFiles files_;
  std::map<FileId, FileId> ids_;
};

}  // namespace dsckpt
