// What DeepSpeed's loader will make of a universal checkpoint, as far as it is not what one
// expects.
#pragma once

#include <string>
#include <vector>

#include "checkpoint/checkpoint.h"
#include "universal/start.h"

namespace dsckpt {

// Of the one that `checkpoint`, open with its optimizer states, becomes. Source:
// universal_checkpoint.py load_hp_checkpoint_state, stage3.py
// load_hp_checkpoint_state_from_checkpoint_dir_stage3, engine.py load_checkpoint.
std::vector<std::string> loader_notes(const Checkpoint& checkpoint);

// Of the one that a checkpoint of another framework becomes.
std::vector<std::string> going_on_notes(const Checkpoint& checkpoint);

// Of the one that a run starts from with `weights`.
std::vector<std::string> start_notes(const Checkpoint& weights, const InitialStates& initial);

}  // namespace dsckpt
