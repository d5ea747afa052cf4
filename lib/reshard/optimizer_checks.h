// Checks that the new run's optimizer can continue with the checkpoint's states and
// hyper-parameters. Conditions of refusals.h.
#pragma once

#include <optional>

#include "reshard/choice.h"
#include "reshard/found.h"

namespace dsckpt {

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
