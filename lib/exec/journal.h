// Journal: what lets a run that was stopped go on (--resume), in two files of its staging folder.
//
// `job` says what is made of what, in JSON: another plan, or inputs that have changed since, cannot
// go on there. In the end it says that all is written and only the commit is left; it is the last
// file that is removed. `journal` says how far the run has come. Both are written beside
// themselves, synced and renamed: after any stop there is the last one or the one before. What they
// say was done was synced before.
//
// They are believed, since no other user can have written them: the staging folder is this user's,
// nobody else may enter it, and they are files of this user's with one name (folder.h). `job` names
// the folder that it was written in, so that a copy of it, whose files nobody has compared, is not
// gone on with.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "exec/executor.h"
#include "exec/output_sums.h"
#include "io/folder.h"
#include "io/input_file.h"
#include "plan/copy_plan.h"

namespace dsckpt {

// What must be the same when a run goes on.
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

// Says in `folder` what is made there. Throws IoError.
void save_job(const Folder& folder, const JobIdentity& job);
// Whether save_job() did.
bool has_job(const Folder& folder);
// What of `job` is another than what was saved in `folder`, for people; "" if nothing is. Throws
// IoError, also if nothing can be made of what is there, and UsageError if it is not this user's.
std::string difference_from_saved(const Folder& folder, const JobIdentity& job);
// The file of step_files.h.
inline constexpr const char* kPlanFile = "plan";
// Removes the staging folder `folder` from `place`, `job` last of all: until then the run that goes
// on finds out that nothing is left to be done. 0, or errno.
int remove_staging_folder(const Folder& place, const Folder& folder);

// How far a run has come.
struct Reached {
  RunState run = {};
  OutputSums::State sums = {};
  uint64_t bytes_stored = 0;  // of packed outputs
};
// Throws IoError.
void save_reached(const Folder& folder, const Reached& reached);
// Nothing if nothing was saved. Throws IoError, also for what save_reached() did not write, and
// UsageError for what is not this user's.
std::optional<Reached> load_reached(const Folder& folder);

// What is written there is to be removed: nobody goes on with it.
void forget_reached(const Folder& folder);

// Says in `job` that all is written, and which folder it was written to: after a rename it is known
// by its inode. Throws IoError.
void save_written(const Folder& folder, uint64_t inode);
std::optional<uint64_t> load_written(const Folder& folder);

}  // namespace dsckpt
