// RankInputs: the inputs of a run, opened by one of its ranks.
#pragma once

#include <map>
#include <vector>

#include "exec/rank_words.h"
#include "group/group.h"
#include "io/input_file.h"

namespace dsckpt {

// Opens a job's inputs when they are needed. One thread at a time; any thread may use the files.
class RankInputs {
 public:
  // Both must outlive it. `group` is nullptr if all ranks see all files.
  RankInputs(const RankJob& job, const Group* group) : job_(job), group_(group) {}

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
  const Group* const group_;
  InputFiles files_;
  std::map<FileId, FileId> ids_;
};

}  // namespace dsckpt
