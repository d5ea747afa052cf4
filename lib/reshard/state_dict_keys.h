// The optimizer values that each of the engine's wrappers saves: the keys of its state_dict() in
// their order. Each key has the function that makes its value for a rank of the target.
#pragma once

#include <optional>
#include <span>
#include <string_view>

#include "deepspeed/engine_wrapper.h"
#include "deepspeed/release.h"
#include "reshard/rank_file.h"

namespace dsckpt {

// A key of a dict, and what makes its value; nullopt: the dict does not have it.
struct DictKey {
  std::string_view key;
  std::optional<pickle::Value> (*make)(const RankFile&);
  Release since = {};  // the first release that has it
};

// The dict of `keys`, in their order.
pickle::Value dict_of(const RankFile& file, std::span<const DictKey> keys);

// Throw UnsupportedError for groups without hyper-parameters, and where stages 1 and 2 would have
// no ds_version.
std::span<const DictKey> state_dict_keys(EngineWrapper wrapper);

// The state_dict() of the target's wrapper, with what is not known of the saved one
// (SourceOffer::keeps_unknown_state) at its end.
pickle::Value wrapper_state_dict(const RankFile& file);

// The keys of an optimizer-states file: engine.py _save_zero_checkpoint.
std::span<const DictKey> optim_file_keys();

}  // namespace dsckpt
