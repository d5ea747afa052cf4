// The calls that picklers write: names, arguments, and contents of the results.
//
// A pickle is harmless only if every call in it is in the table of written_calls.cpp. The table has
// the calls that torch.save, pickle, NumPy, DCP and the frameworks around them write. So nothing
// searches for harm: calls that nobody writes are not harmless.
#pragma once

#include <string_view>

#include "pickle/trace.h"

namespace dsckpt {

// A row says of some names how they are used; what they are called or made with; and what state the
// result is given. Arguments and states are patterns, with | between those that writers have:
//
//   i  an integer          x  a text            I  a shape: a tuple of sizes, or a torch.Size
//   r  a float             B  bytes             J  the tuple of sizes that torch.Size is made of
//   b  a truth value       e  "latin1"          0  False             1  True
//   L  a list              M  a dict            w  anything but a name
//   q  a fraction's text   v  anything          s  a storage
//   n  a number, text, bytes, None, or a result that is as plain
//   F  a default factory   T  a class of tensors; both may be unknown ones
//   A  attributes: a dict of names that are not Python's own (__setstate__)
//   S  attributes, or a pair of them and of those in slots
//   C  a random generator's numbers: a dict of texts, numbers, arrays and such dicts
//   K  what numpy calls an element type: "f8"
//   N  numpy.ndarray       Z  (0,)              Y  b"b"
//   #  the state of a dtype                     @  the state of an array
//
// other letters stand for what a row says that its name `is`, or that calling it `gives`;
// parentheses for a tuple of just these; ? before an argument that may be left out, with all behind
// it; * behind the last one, for any number of them.
struct WrittenCall {
  // Only taken where anything is.
  static constexpr char kNothingElse = 0;

  std::string_view module;
  std::string_view names;
  unsigned uses;
  // The kind of a name, and of the result of a call to it: the letter that patterns have for it.
  char is = kNothingElse;
  char gives = kNothingElse;
  std::string_view arguments = "";
  std::string_view state = "";
};

// The row of a name, as Python 3 calls it; null if no writer has it.
const WrittenCall* written_call(std::string_view module, std::string_view name);

// The allowed uses of a name in the table, as flags of pickle::Use; 0 for other names. Python 2
// names count as their Python 3 names (_compat_pickle.py).
unsigned written_uses(std::string_view module, std::string_view name);

// True for a class of the table that is inside of another.
bool is_inner_class_of(std::string_view module, std::string_view owner, std::string_view name);

// True for attributes that picklers take by getattr. One kind is a member of an enum whose class is
// in the table, as Python 3.11.0 to 3.11.3 pickle it. The other is a class of the table inside
// another class, as protocols 2 and 3 pickle it.
bool is_written_attribute(const pickle::NamedGlobal::Attribute& attribute);

}  // namespace dsckpt
