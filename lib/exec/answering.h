// Answering: does any PieceTask.
#pragma once

#include "exec/piece_task.h"

namespace dsckpt {

// `questions` does those of ckpt-inspect.
AnswerTask answering(AnswerTask questions);

}  // namespace dsckpt
