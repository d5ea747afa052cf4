// Notes on how DeepSpeed's loader will treat a universal checkpoint, where a user may expect
// otherwise.
#pragma once

#include <string>
#include <vector>

#include "checkpoint/checkpoint.h"
#include "universal/start.h"

namespace dsckpt {

// Notes for a universal checkpoint made of `checkpoint`, which is open with its optimizer states.
// Source: universal_checkpoint.py load_hp_checkpoint_state, stage3.py
// load_hp_checkpoint_state_from_checkpoint_dir_stage3, engine.py load_checkpoint.
std::vector<std::string> loader_notes(const Checkpoint& checkpoint);

// Notes for one made of another framework's checkpoint.
std::vector<std::string> going_on_notes(const Checkpoint& checkpoint);

// Notes for one made of `weights`, from which a run starts.
std::vector<std::string> start_notes(const Checkpoint& weights, const InitialStates& initial);

}  // namespace dsckpt
