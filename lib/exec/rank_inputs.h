// RankInputs: the inputs of a run as one of its ranks opens them.
#pragma once

#include <map>
#include <vector>

#include "exec/rank_words.h"
#include "group/group.h"
#include "io/input_file.h"

namespace dsckpt {

// What is read of a job's inputs, opened as it is needed. One thread at a time; the files that it
// gives from any.
class RankInputs {
 public:
  // Both must outlive it. `group`: nullptr where all see all files.
  RankInputs(const RankJob& job, const Group* group) : job_(job), group_(group) {}

  // The number here of an input of the job. Throws IoError if it is another file here than on
  // rank 0, or than when the job was planned.
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
