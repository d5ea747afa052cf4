// Which of the names in a pickle are harmless, and which would run code.
//
// Harmless is what is on a list (kHarmless in global_classes.cpp), name by name: data classes, and
// functions that put data together, of Python, numpy, torch, DeepSpeed, Megatron-LM, transformers,
// accelerate, Lightning, PEFT and TRL, which checkpoints of these have. The list says how they are
// used and what they are called with; only that is harmless, and nothing of a pickle's choice is
// run by it. Dangerous is what runs what it is given, opens files or
// connections, loads more pickles, or gets at any of these: by module for whole modules
// (kDangerousModules), else by name. Everything else is unknown, also in modules with harmless
// names.
#pragma once

#include <cstdint>
#include <string_view>

#include "pickle/trace.h"

namespace dsckpt {

// Allowed is what is unknown and was said to be harmless (ScanResult::allow).
enum class GlobalClass : uint8_t { harmless, allowed, unknown, dangerous };
const char* to_string(GlobalClass value);

// By name alone, as if it were used like its row in the list says. Names of Python 2 count as what
// Python 3 makes of them (_compat_pickle.py).
GlobalClass classify_name(std::string_view module, std::string_view name);

// For pickle::trace, one for each: false if a name on the list is called with anything but what the
// list says.
pickle::CallCheck expected_calls();

// By name and use, in a trace with expected_calls(). Beyond the name:
//  * a name on the list that is used otherwise is what it would be if it were not on it;
//  * builtins.getattr is harmless where it does nothing but take members of harmless enum classes:
//    Python 3.11.0 to 3.11.3 pickle enums so;
//  * a global that is itself changed is dangerous, and so is calling what a call returned: no
//    pickler writes that;
//  * a name that is made while the pickle runs is dangerous, and so is a persistent id that is
//    called; an extension code is unknown.
GlobalClass classify(const pickle::NamedGlobal& global);

}  // namespace dsckpt
