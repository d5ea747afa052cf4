// Weights with the hub's names as tensors of the module (names/hub_names.h).
#pragma once

#include <cstddef>
#include <filesystem>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "checkpoint/checkpoint.h"
#include "checkpoint/weights.h"

namespace dsckpt {

class KeyMap;

// Maps the names in files of weights to the engine's. First `strip_prefix` is removed from longer
// names that begin with it, then `add_prefix` is put before every name.
struct WeightNames {
  std::string strip_prefix = {};
  std::string add_prefix = {};
  std::string model = {};      // Weights::Options
  bool allow_missing = false;  // likewise
  // Names of the hub become the module's even if no checkpoint says that the run has the module's.
  bool as_module = false;
  // Counts the tensors of the run that are not among some. With it, names of the hub become the
  // module's where fewer are then lacking, and with `as_module` where no more are.
  std::function<size_t(std::span<const WeightsTensor> tensors)> lacking = {};
  // Rules for the resulting names. With them, names of the hub do not become the module's by
  // themselves. nullptr: none. Borrowed.
  KeyMap* rules = nullptr;
  std::shared_ptr<Folders> folders = {};  // FindOptions::folders
  std::string choice = {};                // TagFolder::note, where they were one of several
};

struct ModuleTensors {
  std::vector<WeightsTensor> tensors;
  bool from_hub = false;  // they have other names than in the files, or are made of others
};

// The tensors of `weights` from `path`. The config.json in the same folder tells if they have the
// hub's names. If so, and `target` has the module's, they are cut, stacked and renamed as the
// module has them. Without `target`, and where WeightNames::lacking decides nothing, the release of
// transformers in config.json decides which names the module has. A note says so, unless `lacking`
// decided. Tensors that the rules do not fit stay as they are; the code that looks up names then
// reports missing ones. Throws IoError.
ModuleTensors as_module_has(const Weights& weights, const std::filesystem::path& path,
                            const WeightNames& names, const Checkpoint* target,
                            std::vector<std::string>& notes);

// From a name in files of weights to the engine's.
std::string engine_name(const WeightNames& names, const std::string& name);

}  // namespace dsckpt
