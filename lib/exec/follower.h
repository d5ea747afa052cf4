// Follower: any rank of a group but 0. It does what rank 0 says, whatever the command is.
#pragma once

#include "dsckpt/run.h"
#include "group/group.h"

namespace dsckpt {

// Does portions until rank 0 ends the group; returns the exit status that it gives. `threads` as
// ExecOptions'. Throws IoError if rank 0 is lost; all that was under way has stopped then.
// `progress.cancelled` stops the whole group.
int follow(Group& group, unsigned threads, Progress& progress);

}  // namespace dsckpt
