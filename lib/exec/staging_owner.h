// The owner of a staging folder, by which a later run tells left-overs of a killed run from files
// that are still being written.
//
// A folder is signed by a file `owner` in it, which the run keeps locked (flock) as long as it
// lives. The file has the host, the start of its kernel, the namespace of process numbers, and the
// process with its start. It also has the job and step of a batch system, and the folder that it
// was written in. So a copied signature is not valid for another folder.
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
  // Signs `folder` for this process, and replaces an earlier signature. If that fails, the folder
  // stays unsigned: the next write will fail too, with a better message. Throws UsageError if
  // somebody else holds the lock, or if the file of that name is not this user's.
  explicit StagingOwner(const Folder& folder);
  // Releases the lock; the file stays.
  ~StagingOwner();
  StagingOwner(const StagingOwner&) = delete;
  StagingOwner& operator=(const StagingOwner&) = delete;

  // Declares that nobody writes there any more, though this process lives on.
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

// The line of JSON with which a process describes itself where there is no lock, and the state of
// the process in such a line. Only processes of this start of this kernel can be surely dead.
std::string owner_line();
SignedBy owner_in(std::string_view line);

// Removes the staging folders in `place` that are this user's and whose owners are dead, except
// those that a run can resume (journal.h). Returns a note for each of these exceptions, for folders
// whose owner is unknown, and for those that others may have made. Folders that are still being
// written get no note. A folder that cannot be listed has none.
std::vector<std::string> clear_left_overs(const Folder& place);

}  // namespace dsckpt
