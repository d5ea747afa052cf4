// Follower: any rank of a group but 0. It obeys rank 0, whatever the command is.
#pragma once

#include <functional>
#include <string>
#include <string_view>

#include "dsckpt/run.h"
#include "exec/rank_inputs.h"
#include "group/group.h"

namespace dsckpt {

// Answers a question about the contents of a job's files (Tasks::questions). Throws the errors of
// reading. One question at a time.
using Answer = std::function<std::string(std::string_view question, RankInputs& inputs,
                                         unsigned threads, Progress& progress)>;

// Does tasks until rank 0 ends the group; returns the exit status from rank 0. `threads` is as in
// ExecOptions. Throws IoError if rank 0 is lost; all work has stopped by then. Setting
// `progress.cancelled` stops the whole group.
int follow(Group& group, unsigned threads, Progress& progress, const Answer& answer);

}  // namespace dsckpt
