// Conditions of refusals.h. A target's parameter groups must be those of the model, and of the run
// that it is like. Its optimizer must continue with the checkpoint's states and hyper-parameters.
// Each gives the first that is wrong.
#pragma once

#include <optional>

#include "reshard/choice.h"

namespace dsckpt {

// The source and `like` must have one model, and train the same parameters.
std::optional<Found> other_model(const Choice& choice);

// Every parameter that is trained has to be in one group, and nothing else in any.
std::optional<Found> wrong_member(const Choice& choice);

// Under ZeRO from stage 0: parameters without states beside others with some. The reason is that
// torch's own optimizer also lists the frozen parameters it was given, without states.
std::optional<Found> stateless_member(const Choice& choice);
// Stage 3: an expert of AutoEP's that is not trained.
std::optional<Found> expert_without_optimizer(const Choice& choice);

// Stages 1 and 2: a flat vector cannot be empty. Stage 3 keeps a group of frozen parameters only,
// as torch does.
std::optional<Found> empty_group(const Choice& choice);

// To stage 3 of another framework's checkpoint, where every tensor that is not trained and could
// be a parameter counts as one.
std::optional<Found> frozen_or_buffer(const Choice& choice);

// To stage 0: parameters that ZeRO left out, and torch's own optimizer may have had.
std::optional<Found> frozen_without_elements(const Choice& choice);

// Stage 3: sub-groups of the reference's files that are not cut by the target's size. The new ones
// would then differ from the engine's.
std::optional<Found> other_sub_groups(const Choice& choice);

// True if the new run has DeepSpeed's own Adam, by `like` or by its configuration. This Adam reads
// a hyper-parameter, bias_correction, that the checkpoint's groups do not have.
bool is_torchs_adam_for_like(const Choice& choice);
bool is_torchs_adam_for_config(const Choice& choice);

// States that the optimizer of the new run's configuration does not keep, or lacks of those it
// does.
std::optional<Found> other_optimizer(const Choice& choice);

// torch's Adagrad, whose states DeepSpeed does not load there.
bool is_adagrad_at_stage_3(const Choice& choice);

}  // namespace dsckpt
