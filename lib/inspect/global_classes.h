// Which of the names in a pickle are harmless, and which would run code.
//
// Harmless is what is in the table of written_calls.cpp, used as that table says. Dangerous is a
// name of the table that is used in another way, and what runs what it is given, opens files or
// connections, loads more pickles, or gets at any of these: by module for whole modules
// (kDangerousModules), else by name. Everything else is unknown, also in modules with harmless
// names: a user may say that it is harmless.
#pragma once

#include <cstdint>
#include <string_view>

#include "inspect/pickle_judge.h"
#include "pickle/trace.h"

namespace dsckpt {

// Allowed is what is unknown and was said to be harmless (ScanResult::allow).
enum class GlobalClass : uint8_t { harmless, allowed, unknown, dangerous };
const char* to_string(GlobalClass value);

// By name alone, as if it were used like its row in the table says. Names of Python 2 count as what
// Python 3 makes of them (_compat_pickle.py).
GlobalClass classify_name(std::string_view module, std::string_view name);

// By name and use, not by arguments: in a trace of what was refused. Beyond the name:
//  * builtins.getattr is harmless where it does nothing but take members of harmless enum classes:
//    Python 3.11.0 to 3.11.3 pickle enums so;
//  * a global that is itself changed is dangerous, and so is calling what a call returned: no
//    pickler writes that;
//  * a name that is made while the pickle runs is dangerous, and so are a persistent id that is
//    called and an extension code, which means nothing to whoever did not register it.
GlobalClass classify(const pickle::NamedGlobal& global);
// The same, with all that judge() says of it.
GlobalClass classify(const JudgedGlobal& global);

}  // namespace dsckpt
