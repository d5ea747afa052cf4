// DeepSpeed's configuration between JSON and the pickles of checkpoints.
#pragma once

#include <nlohmann/json.hpp>

#include "pickle/pickle.h"

namespace dsckpt {

// A pickled configuration as JSON. Tuples become lists; keys that are not strings become those of
// Python's json. Reals are kept, even infinities (Accelerate sets steps_per_print to one): write
// the result with ds_config_text(). Throws UnsupportedError, which names the key path, for integers
// beyond int64, bytes, sets and objects. Throws it also for two keys that become equal, and for
// more values or levels than a configuration can have.
nlohmann::ordered_json json_of(const pickle::Value& config);

// The reverse. Whole numbers become integers if they fit int64, else big integers; other numbers
// become reals. Objects become dicts in their order, and lists become lists. Throws
// UnsupportedError for nesting that json_of() would refuse.
pickle::Value pickle_of(pickle::Document& document, const nlohmann::ordered_json& config);

}  // namespace dsckpt
