// Weights with the hub's names as tensors of the module (names/hub_names.h).
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "checkpoint/checkpoint.h"
#include "checkpoint/weights.h"

namespace dsckpt {

// The tensors of `weights` of `path`. If they have the hub's names, as the config.json in the same
// folder says, and `target` the module's, they are what the module has: cut, stacked and renamed
// likewise. Without `target` the release of transformers in config.json says which the module has.
// A note says so. Anything that the rules do not fit stays as it is: whoever looks for names then
// says what is missing. Throws IoError.
std::vector<WeightsTensor> as_module_has(const Weights& weights, const std::filesystem::path& path,
                                         const WeightNames& names, const Checkpoint* target,
                                         std::vector<std::string>& notes);

// From a name in files of weights to the engine's.
std::string engine_name(const WeightNames& names, const std::string& name);

}  // namespace dsckpt
