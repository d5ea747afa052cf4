// Which other processes take part in a run, and how.
#pragma once

#include <filesystem>
#include <functional>

#include "exec/journal.h"
#include "exec/meeting.h"
#include "exec/step_files.h"
#include "io/folder.h"

namespace dsckpt {

// The other ranks of a launcher.
struct OtherRanks {
  Meeting& meeting;
  PlannedBy by;  // as plan_steps()
};

// Looks at the folder that an output is staged in, and committed to, before anything is written. If
// it throws, nothing is left there.
using FolderCheck = std::function<void(const Folder& folder)>;

struct Sharing {
  const OtherRanks* others = nullptr;
  const JobIdentity* identity = nullptr;  // of a run that can be resumed
  bool only_goes_on = false;
  bool in_steps = false;
  std::filesystem::path planned_in = {};  // the plan's folder, only if the output is in a store
  FolderCheck check = {};

  bool is_shared() const { return others != nullptr || in_steps; }
};

}  // namespace dsckpt
