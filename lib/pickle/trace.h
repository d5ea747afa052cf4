// What a pickle names and what it does with it, however broken it is.
//
// Document::parse wants a whole pickle, and values that make sense. A trace wants neither: Python
// runs a pickle opcode by opcode, so what stands before a break has been run by then. Values are
// not built; a trace only follows which of them are names, what is called, and which texts a name
// could be made of. Where Python would stop with an error and the bytes can still be told apart, a
// trace goes on, so that it sees at least what any unpickler does. It explains what Document::parse
// refuses, and tells where no unpickler goes on: until there, bytes that are no pickle do nothing
// if they name nothing.
#pragma once

#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "base/byte_source.h"

namespace dsckpt::pickle {

// What a pickle does with something that it names; flags.
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
  // Of getattr alone, and only where `uses` is 0: everything it was called for.
  std::vector<Attribute> attributes;
};

struct Trace {
  static constexpr uint64_t kNowhere = std::numeric_limits<uint64_t>::max();

  std::vector<NamedGlobal> globals;  // in order of first appearance, each one once
  uint64_t end = 0;                  // after STOP, or of the opcode that could not be read
  // Why the pickle did not come to its STOP; "" if it did.
  std::string problem;
  bool is_cut = false;  // the problem is that it has more than is followed: what comes then counts
  bool is_truncated = false;  // the problem is that the bytes end
  // The first opcode that ends every unpickler with an error; kNowhere if there is none.
  uint64_t died = kNowhere;
  // The first memo index before that which is larger than the number of bytes that come before it:
  // Python's memo gets as large as that.
  uint64_t far_index = 0;
  bool whole() const { return problem.empty(); }
};

// Traces the pickle at the start of `source`. copyreg's functions that make an object of a class
// count as calls of that class too. Throws only what reading `source` throws. Time is linear in the
// length, and memory in the number of values that the pickle keeps, which is bounded; long texts
// are passed by.
Trace trace(const ByteSource& source);

// The length of the pickle at the start of `source` up to and with its STOP, by its opcodes alone.
// Throws CorruptError, with the offset counted from `base`, if there is another byte among them or
// the bytes end. Long texts are passed by.
uint64_t length(const ByteSource& source, uint64_t base = 0);

}  // namespace dsckpt::pickle
