// Which of the names in a pickle are harmless, and which would run code.
//
// Harmless is what is on a list (kHarmless in global_classes.cpp), name by name: data classes, and
// functions that put data together, of Python, numpy, torch, DeepSpeed, Megatron-LM, transformers,
// accelerate and Lightning, which checkpoints of these have. Whatever arguments a pickle gives
// them, nothing of its choice is run. Dangerous is what runs what it is given, opens files or
// connections, loads more pickles, or gets at any of these: by module for whole modules
// (kDangerousModules), else by name. Everything else is unknown, also in modules with harmless
// names.
#pragma once

#include <cstdint>
#include <string_view>

#include "pickle/trace.h"

namespace dsckpt {

enum class GlobalClass : uint8_t { harmless, unknown, dangerous };
const char* to_string(GlobalClass value);

// By name alone. Names of Python 2 count as what Python 3 makes of them (_compat_pickle.py).
GlobalClass classify_name(std::string_view module, std::string_view name);

// By name and use. Beyond the name:
//  * builtins.getattr is harmless where it does nothing but take members of harmless enum classes:
//    Python 3.11.0 to 3.11.3 pickle enums so;
//  * a global that is itself changed is dangerous, and so is calling what a call returned: no
//    pickler writes that;
//  * a name that is made while the pickle runs is dangerous, and so is a persistent id that is
//    called; an extension code is unknown.
GlobalClass classify(const pickle::NamedGlobal& global);

}  // namespace dsckpt
