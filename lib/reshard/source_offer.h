// The parts that a checkpoint offers to the files of a target: decided once, from the facts of
// both.
#pragma once

#include "checkpoint/checkpoint.h"
#include "reshard/target.h"

namespace dsckpt {

struct SourceOffer {
  // The new run starts from it: nothing of its training goes on.
  bool starts = false;
  // Its parameters have other values, or other names, than the copies of them in its files.
  bool new_values = false;
  // Its optimizer's wrapper is the target's, so what is not known of the wrapper's state_dict, as a
  // later DeepSpeed may have it, is kept.
  bool keeps_unknown_state = false;
  // Stage 0: `optimizer` can be copied as it is.
  bool optimizer_as_it_is = false;
  // Under ZeRO `optimizer` of its model-states files, if there, is the program's (client_state).
  bool optimizer_is_programs = false;
  // `module` can be copied as it is.
  bool module_as_it_is = false;
  // So can frozen_param_fragments, if they are of the frozen parameters.
  bool fragments_as_they_are = false;

  bool operator==(const SourceOffer&) const = default;
};

SourceOffer source_offer(const CheckpointFacts& source, const ReshardTarget& target);

}  // namespace dsckpt
