// Follower: any rank of a meeting but 0. It does what rank 0 says, whatever the command is.
#pragma once

#include "exec/meeting.h"
#include "exec/piece_task.h"

namespace dsckpt {

// Does that until rank 0 says with which status to end, and returns it. `threads` is as in
// ExecOptions. `answer` is for PieceKind::questions. Throws as Attendance::next().
int follow(Attendance& attendance, int rank, const MeetingOptions& options, unsigned threads,
           const AnswerTask& answer);

}  // namespace dsckpt
