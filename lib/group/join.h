// Join: how a process becomes a rank of a group, by what its launcher says.
#pragma once

#include <atomic>
#include <chrono>
#include <exception>
#include <memory>
#include <string>

#include "dsckpt/error.h"
#include "group/group.h"
#include "group/launch.h"

namespace dsckpt {

enum class GroupEngine : uint8_t {
  automatic,  // mpi where the launcher and the plug-in have it, else tcp
  none,       // alone, whatever started it
  mpi,        // MPI says where rank 0 is
  tcp,        // a private file says it, or DSCKPT_GROUP_ADDRESS and DSCKPT_GROUP_TOKEN
};

struct GroupOptions {
  GroupEngine engine = GroupEngine::automatic;
  // A rank that nothing is heard of for so long is lost.
  std::chrono::seconds silence{600};
  // Within which all ranks must have come.
  std::chrono::seconds gathering{30};
  std::string program = {};  // name and version: that of all ranks
};

// Thrown on ranks other than 0 if their group does not come about: another rank says why.
class GroupRefused : public std::exception {
 public:
  explicit GroupRefused(ErrorKind kind) : kind_(kind) {}
  ErrorKind kind() const { return kind_; }
  const char* what() const noexcept override { return "the group has not come about"; }

 private:
  ErrorKind kind_;
};

// The group that this process was started as a rank of, once all its ranks have come; nullptr if it
// was started alone. Throws UsageError for what does not go together, IoError if ranks do not come,
// InterruptedError; and GroupRefused.
std::unique_ptr<Group> join_group(const GroupOptions& options, const Environment& environment,
                                  const std::atomic<bool>& cancelled);

}  // namespace dsckpt
