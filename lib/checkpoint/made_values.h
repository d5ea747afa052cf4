// Values of files that are put together: of a run that has not saved a model-states file (engine.py
// _save_checkpoint), and of groups.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "checkpoint/checkpoint.h"
#include "format/torch_archive.h"
#include "pickle/pickle.h"

namespace dsckpt {

// The names of the buffers among `params`, as a list.
pickle::Value buffer_names(pickle::Document& document, const std::vector<Param>& params);

// Puts the counters and other facts, but no tensors, into `dict`. There is no data sampler, no
// configuration and one rank. Steps are `global_steps`, with no other steps or samples; the release
// is the newest known.
void set_counters(pickle::Document& document, pickle::Value dict, int64_t global_steps);

// A copy of a setting of `archive`. It may be a number, a text, None, or a tensor of one element,
// copied as a number. It may be tuples and lists of such, as far as optimizers nest them. Returns
// nullopt for anything else.
std::optional<pickle::Value> copy_setting(pickle::Document& document, const TorchArchive& archive,
                                          const pickle::Value& value);

}  // namespace dsckpt
