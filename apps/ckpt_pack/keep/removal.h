// Removal: a checkpoint leaves the run at once, and nothing else ever does.
//
// RUN/NAME is renamed into RUN/.dsckpt-keep-removing-NUMBER/, which only this user may enter, and
// looked at again there. If it is not the recorded checkpoint, or `latest` names it, it gets its
// name back. Else that folder is renamed to .dsckpt-keep-removed-NUMBER, and removed by
// descriptors, no link followed. So the names that a killed process leaves tell the next one how to
// finish.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "ckpt_pack/keep/run_folder.h"

namespace dsckpt::pack {

// True if a checkpoint of that name with those files may be removed.
using MayRemove = std::function<bool(const RunCheckpoint& checkpoint)>;

struct Removal {
  bool done = false;      // by this call: somebody else may have been faster
  std::string note = {};  // why it, or some of it, is still there
};
// `may_remove` is asked once nobody else finds it any more.
Removal remove_checkpoint(const RunFolder& run, const RunCheckpoint& checkpoint,
                          const MayRemove& may_remove);

// Finishes what earlier processes have begun. Returns notes for the user.
std::vector<std::string> end_removals(const RunFolder& run, const MayRemove& may_remove);

}  // namespace dsckpt::pack
