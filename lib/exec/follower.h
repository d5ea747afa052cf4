// Follower: any rank of a group but 0. It does what rank 0 says, whatever the command is.
#pragma once

#include <functional>
#include <string>
#include <string_view>

#include "dsckpt/run.h"
#include "exec/rank_inputs.h"
#include "group/group.h"

namespace dsckpt {

// Answers a question about what is in the files of a job (Tasks::questions). Throws what reading
// throws. One question at a time.
using Answer = std::function<std::string(std::string_view question, RankInputs& inputs,
                                         unsigned threads, Progress& progress)>;

// Does tasks until rank 0 ends the group; returns the exit status that it gives. `threads` as
// ExecOptions'. Throws IoError if rank 0 is lost; all that was under way has stopped then.
// `progress.cancelled` stops the whole group.
int follow(Group& group, unsigned threads, Progress& progress, const Answer& answer);

}  // namespace dsckpt
