// Journal: two files in the staging folder that let a stopped run resume (--resume).
//
// `job` describes the plan, inputs and outputs in JSON. Another plan, or inputs that have changed
// since, cannot resume there. In the end it says that everything is written and only the commit is
// left. It is removed last. The progress of the run is in `journal`. Both are written under another
// name, synced and renamed: after any stop there is the last version or the one before. The
// progress in them was synced before they were.
//
// They are trusted, since no other user can have written them. The staging folder is this user's
// and nobody else may enter it. They are regular files of this user with one name (folder.h). The
// folder that it was written in is named in `job`. So no run resumes in a copy of it, whose files
// nobody has compared.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "exec/executor.h"
#include "exec/output_sums.h"
#include "exec/staging_sink.h"
#include "io/folder.h"
#include "io/input_file.h"
#include "plan/copy_plan.h"

namespace dsckpt {

// The facts that must be unchanged when a run resumes.
struct JobIdentity {
  struct File {
    std::string path;
    uint64_t size = 0;
    int64_t modified = 0;  // of an input: nanoseconds since the epoch
  };
  std::vector<File> inputs = {};  // sizes on the disk
  std::vector<File> outputs = {};
  std::string plan = {};     // its digest, hexadecimal
  std::string options = {};  // of the run, that decide what is written and checked
};
JobIdentity identity_of(const CopyPlan& plan, const InputFiles& inputs, std::string options);

// Writes `job` in `folder`. Throws IoError.
void save_job(const Folder& folder, const JobIdentity& job);
// True if save_job() has written there.
bool has_job(const Folder& folder);
// The differences between `job` and the saved one in `folder`, for people; "" if there are none.
// Throws IoError, also for a file that makes no sense, and UsageError if it is not this user's.
std::string difference_from_saved(const Folder& folder, const JobIdentity& job);
// The file of step_files.h.
inline constexpr const char* kPlanFile = "plan";
// The file that a plan for an object store leaves in its place when it is committed.
inline constexpr const char* kCommittedFile = "committed";
// Removes the staging folder `folder` from `place`, `job` last: until then a resumed run learns
// that nothing is left to do. Returns 0, or errno.
int remove_staging_folder(const Folder& place, const Folder& folder);

// The progress of a run.
struct Reached {
  RunState run = {};
  OutputSums::State sums = {};
  uint64_t bytes_stored = 0;  // of packed outputs
  // By other processes, for an object store. Only their results have it (step_files.h).
  std::vector<SentWork> sent = {};
};
// Throws IoError.
void save_reached(const Folder& folder, const Reached& reached);
// Loads the progress; nothing if none was saved. Throws IoError, also for a file that
// save_reached() did not write, and UsageError if it is not this user's.
std::optional<Reached> load_reached(const Folder& folder);

// Discards the progress: the files there will be removed, and no run resumes with them.
void forget_reached(const Folder& folder);

// Records in `job` that everything is written, and the inode of the folder that has it: the inode
// stays the same after a rename. Throws IoError.
void save_written(const Folder& folder, uint64_t inode);
std::optional<uint64_t> load_written(const Folder& folder);

}  // namespace dsckpt
