// What a pickle names and what it does with it, however broken it is.
//
// Document::parse wants a whole pickle, and values that make sense. A trace wants neither: Python
// runs a pickle opcode by opcode, so what stands before a break has been run by then. Values are
// not built; a trace only follows which of them are names, what is called, and which texts a name
// could be made of. Where Python would stop with an error and the bytes can still be told apart, a
// trace goes on, so that it sees at least what any unpickler does.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/byte_source.h"

namespace dsckpt::pickle {

// What a pickle does with something that it names; flags.
enum Use : uint8_t {
  kNamed = 1,          // put into a value, or dropped
  kCalled = 2,         // by REDUCE, INST or OBJ
  kMade = 4,           // its __new__ is called, by NEWOBJ or NEWOBJ_EX
  kBuilt = 8,          // what calling it gave was given a state, by BUILD
  kChanged = 16,       // it was itself given a state or items
  kResultCalled = 32,  // what calling it gave was called in turn
  kOdd = 64            // called with something that the CallCheck did not expect
};
// "named", "called", ...
std::vector<std::string> to_strings(Use uses);

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
  uint8_t uses = 0;     // of enum Use
  // Of getattr alone, and only where `uses` is 0: everything it was called for.
  std::vector<Attribute> attributes;
};

struct Trace {
  std::vector<NamedGlobal> globals;  // in order of first appearance, each one once
  uint64_t end = 0;                  // after STOP, or of the opcode that could not be read
  // Why the pickle did not come to its STOP; "" if it did.
  std::string problem;
  bool is_cut = false;  // the problem is that it has more than is followed: what comes then counts
  bool whole() const { return problem.empty(); }
};

// What is known of a value that a pickle makes.
struct TracedValue {
  enum Kind : uint8_t {
    other,       // nothing
    plain,       // a number, a truth value, None or bytes
    text,        // TracedValues::text
    tuple,       // TracedValues::elements
    container,   // a list, dict or set, whatever is in it
    global,      // TracedValues::global
    result,      // what was made by calling TracedValues::global
    persistent,  // what a persistent id stands for
  };
  Kind kind = other;
  bool is_plain = false;  // also for a text, and for a tuple of what is plain
  uint64_t what = 0;      // for TracedValues
};

// Looks into the values of a trace while it runs.
class TracedValues {
 public:
  // Of a global or a result.
  virtual const NamedGlobal& global(const TracedValue& value) const = 0;
  // nullopt if it is too long for a name.
  virtual std::optional<std::string> text(const TracedValue& value) const = 0;
  virtual std::span<const TracedValue> elements(const TracedValue& tuple) const = 0;

 protected:
  ~TracedValues() = default;
};

// A call of a global that has a name.
struct TracedCall {
  const NamedGlobal& callable;
  std::optional<std::span<const TracedValue>> arguments;  // nullopt: they cannot be told
  const TracedValues& values;
};
// False if the call is not one that is expected of the callable.
using CallCheck = std::function<bool(const TracedCall&)>;

// Traces the pickle at the start of `source`, and asks `is_expected`, if there is one, about every
// call but getattr's for an attribute. copyreg's functions that make an object of a class count as
// calls of that class too. Throws only what reading `source` throws. Time is linear in the length,
// and memory in the number of values that the pickle keeps, which is bounded; long texts are passed
// by.
Trace trace(const ByteSource& source, const CallCheck& is_expected = {});

}  // namespace dsckpt::pickle
