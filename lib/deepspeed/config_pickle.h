// DeepSpeed's configuration between JSON and the pickles of checkpoints.
#pragma once

#include <nlohmann/json.hpp>

#include "pickle/pickle.h"

namespace dsckpt {

// A configuration as pickled in a checkpoint, as JSON: tuples become lists, keys that are not
// strings what Python's json makes of them. Reals stay what they are, infinities too (Accelerate
// sets steps_per_print to one): write the result with ds_config_text(). Throws UnsupportedError
// that names the key path for integers beyond int64, bytes, sets and objects, for two keys that
// become one, and for more values or levels than a configuration can have.
nlohmann::ordered_json json_of(const pickle::Value& config);

// The other way: whole numbers that fit int64 become integers, larger ones big integers, other
// numbers reals, objects dicts in their order, lists lists. Throws UnsupportedError for nesting
// that json_of() would refuse.
pickle::Value pickle_of(pickle::Document& document, const nlohmann::ordered_json& config);

}  // namespace dsckpt
