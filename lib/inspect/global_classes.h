// Decides which names in a pickle are harmless, and which would run code.
//
// A name is harmless if it is in the table of written_calls.cpp and used as the table says. It is
// dangerous if it is in the table and used in another way. It is also dangerous if it runs its
// arguments, opens files or connections, loads more pickles, or gives access to any of these. Whole
// modules are dangerous (kDangerousModules), others by name. Every other name is unknown, even in
// modules with harmless names; a user may declare it harmless.
#pragma once

#include <cstdint>
#include <string_view>

#include "inspect/pickle_judge.h"
#include "pickle/trace.h"

namespace dsckpt {

// An allowed name is an unknown one that was declared harmless (ScanResult::allow).
enum class GlobalClass : uint8_t { harmless, allowed, unknown, dangerous };
const char* to_string(GlobalClass value);

// By name alone, as if it were used as its row in the table says. Python 2 names count as their
// Python 3 names (_compat_pickle.py).
GlobalClass classify_name(std::string_view module, std::string_view name);

// By name and use, not by arguments, in a trace of a refused pickle. Beyond the name:
// * builtins.getattr is harmless if it only takes members of harmless enum classes. Python 3.11.0
//   to 3.11.3 pickle enums so.
// * A global that is itself changed is dangerous. So is a call of a call's result. No pickler
//   writes either.
// * A name that is made while the pickle runs is dangerous, and so is a call of a persistent id. So
//   is an extension code, which has a meaning only where it is registered.
GlobalClass classify(const pickle::NamedGlobal& global);
// The same, with the results of judge().
GlobalClass classify(const JudgedGlobal& global);

}  // namespace dsckpt
