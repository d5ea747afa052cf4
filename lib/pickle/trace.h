// Traces the names in a pickle and their uses, however broken the pickle is.
//
// Document::parse needs a whole pickle with sensible values; a trace does not. Python runs a pickle
// opcode by opcode, so everything before a break has already run. A trace builds no values. It only
// follows which of them are names, which are called, and which texts could make up a name. It goes
// on where Python would stop with an error, if the bytes can still be told apart. So it sees at
// least as much as any unpickler. It explains why Document::parse refuses a pickle, and finds the
// place where every unpickler stops. Up to there, bytes that are not a pickle are harmless if they
// name nothing.
#pragma once

#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "base/byte_source.h"

namespace dsckpt::pickle {

// The uses that a pickle makes of something that it names; flags.
enum Use : uint16_t {
  kNamed = 1,          // put into a value, or dropped
  kCalled = 2,         // by REDUCE, INST or OBJ
  kMade = 4,           // its __new__ is called, by NEWOBJ or NEWOBJ_EX
  kBuilt = 8,          // what calling it gave was given a state, by BUILD
  kFilled = 16,        // what calling it gave was given items
  kChanged = 32,       // it was itself given a state or items
  kResultCalled = 64,  // what calling it gave was called in turn
};
// "named", "called", ...
std::vector<std::string> to_strings(unsigned uses);

struct NamedGlobal {
  enum class Form : uint8_t {
    name,        // module and name, as they stand in the pickle
    computed,    // a name that is made while the pickle runs; what is constant of it is given
    extension,   // a number that copyreg.add_extension gives a meaning to
    persistent,  // a persistent id that is called
  };
  // A constant attribute that getattr, called by REDUCE, takes from a global.
  struct Attribute {
    std::string module;
    std::string owner;
    std::string name;
    bool operator==(const Attribute&) const = default;
  };

  Form form = Form::name;
  std::string module;
  std::string name;     // names of more than 1000 bytes are cut off there; an extension's number
  uint64_t offset = 0;  // of the opcode that first names it, in the source
  unsigned uses = 0;    // of enum Use
  // For getattr alone, and only if `uses` is 0: everything it was called for.
  std::vector<Attribute> attributes;
};

struct Trace {
  static constexpr uint64_t kNowhere = std::numeric_limits<uint64_t>::max();

  std::vector<NamedGlobal> globals;  // in order of first appearance, each one once
  uint64_t end = 0;                  // after STOP, or of the opcode that could not be read
  // The reason why the pickle did not reach its STOP; "" if it did.
  std::string problem;
  bool is_cut = false;  // the problem is a pickle too large to follow; the rest of it still counts
  bool is_truncated = false;  // the problem is that the bytes end
  // The first opcode that ends every unpickler with an error; kNowhere if there is none.
  uint64_t died = kNowhere;
  // The first memo index before `died` that exceeds the number of bytes before it: Python's memo
  // grows to that size.
  uint64_t far_index = 0;
  bool whole() const { return problem.empty(); }
};

// Traces the pickle at the start of `source`. Calls of copyreg's functions that make an object
// count as calls of its class too. Throws only the errors of reading `source`. Time is linear in
// the length. Memory is linear in the number of values that the pickle keeps, which is bounded.
// Long texts are skipped.
Trace trace(const ByteSource& source);

// The length of the pickle at the start of `source` up to and including its STOP, by its opcodes
// alone. Throws CorruptError, with the offset counted from `base`, for a byte that is not an opcode
// and if the bytes end. Long texts are skipped.
uint64_t length(const ByteSource& source, uint64_t base = 0);

}  // namespace dsckpt::pickle
