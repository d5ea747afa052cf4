// Whose a staging folder is: so that a later run can tell what a killed one has left from what
// somebody still writes.
//
// A folder is signed by a file `owner` in it, which the run keeps locked (flock) as long as it
// lives. It says the host, the start of its kernel, the namespace of process numbers, the process
// and when that began, the job and step of a batch system, and which folder it was written in: a
// signature that was copied elsewhere says nothing of that folder.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "io/folder.h"

namespace dsckpt {

inline constexpr std::string_view kStagingPrefix = ".dsckpt-staging-";

class StagingOwner {
 public:
  // Signs `folder` for this process, in the place of whoever did it before. Where that fails it
  // stays unsigned: what is written next will fail, too, and says it better. Throws UsageError if
  // somebody else holds the lock, or what is called so is not a file of this user's.
  explicit StagingOwner(const Folder& folder);
  // Gives the lock back; the file stays.
  ~StagingOwner();
  StagingOwner(const StagingOwner&) = delete;
  StagingOwner& operator=(const StagingOwner&) = delete;

  // Nobody writes there any more, though this process lives on.
  void unsign();

 private:
  int fd_;
};

enum class OwnerState : uint8_t {
  alive,    // or it may be: somebody holds the lock
  dead,     // surely: a process of this host that is no more
  unknown,  // of another host, another container, or not signed
};

struct SignedBy {
  OwnerState state = OwnerState::unknown;
  std::string who = {};  // "process 1234 on node7, job 17.0", or "" if it is not signed
};
SignedBy owner_of(const Folder& folder);

// What a process says of itself where there is no lock, a line of JSON, and what is known of who
// said that: surely dead is then only what this start of this kernel has run.
std::string owner_line();
SignedBy owner_in(std::string_view line);

// Removes the staging folders in `place` that are this user's and whose owners are dead, but for
// those that a run can go on with (journal.h). Returns a note for each of these, for those of which
// nobody knows and for those that others may have made: not for what somebody still writes. A
// folder that cannot be listed has none.
std::vector<std::string> clear_left_overs(const Folder& place);

}  // namespace dsckpt
