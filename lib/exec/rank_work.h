// Rank work: the ranks of a meeting do the portions of a plan, or tasks that only read, by the
// files of step_files.h. Each takes those of its share, then of others' shares. Rank 0 waits for
// portions that another has begun, as long as that one lives, and else does them itself.
#pragma once

#include <string_view>

#include "dsckpt/run.h"
#include "exec/meeting.h"
#include "exec/step_work.h"

namespace dsckpt {

// Returns when every portion in `folder` has a result. Sets progress.bytes_done to what
// it was, and the portions of all ranks. Throws the error of any rank; the others have then
// stopped, or are away.
void work_with_ranks(Meeting& ranks, const Folder& folder, const AnswerTask& answer,
                     unsigned threads, Progress& progress);

}  // namespace dsckpt
