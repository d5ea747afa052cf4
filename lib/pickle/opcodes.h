// The opcodes of pickles: their names and the form of their arguments. For the pickle sources, and
// for code that writes millions of values without a Document. Source of truth: CPython's
// Lib/pickletools.py.
#pragma once

#include <array>
#include <cstdint>

namespace dsckpt::pickle {

enum Opcode : uint8_t {
  kMark = '(',
  kStop = '.',
  kPop = '0',
  kPopMark = '1',
  kDup = '2',
  kFloat = 'F',
  kInt = 'I',
  kBinInt = 'J',
  kBinInt1 = 'K',
  kLong = 'L',
  kBinInt2 = 'M',
  kNone = 'N',
  kPersId = 'P',
  kBinPersId = 'Q',
  kReduce = 'R',
  kString = 'S',
  kBinString = 'T',
  kShortBinString = 'U',
  kUnicode = 'V',
  kBinUnicode = 'X',
  kAppend = 'a',
  kBuild = 'b',
  kGlobal = 'c',
  kDict = 'd',
  kEmptyDict = '}',
  kAppends = 'e',
  kGet = 'g',
  kBinGet = 'h',
  kInst = 'i',
  kLongBinGet = 'j',
  kList = 'l',
  kEmptyList = ']',
  kObj = 'o',
  kPut = 'p',
  kBinPut = 'q',
  kLongBinPut = 'r',
  kSetItem = 's',
  kTuple = 't',
  kEmptyTuple = ')',
  kSetItems = 'u',
  kBinFloat = 'G',
  kProto = 0x80,
  kNewObj = 0x81,
  kExt1 = 0x82,
  kExt2 = 0x83,
  kExt4 = 0x84,
  kTuple1 = 0x85,
  kTuple2 = 0x86,
  kTuple3 = 0x87,
  kNewTrue = 0x88,
  kNewFalse = 0x89,
  kLong1 = 0x8a,
  kLong4 = 0x8b,
  kBinBytes = 'B',
  kShortBinBytes = 'C',
  kShortBinUnicode = 0x8c,
  kBinUnicode8 = 0x8d,
  kBinBytes8 = 0x8e,
  kEmptySet = 0x8f,
  kAddItems = 0x90,
  kFrozenSet = 0x91,
  kNewObjEx = 0x92,
  kStackGlobal = 0x93,
  kMemoize = 0x94,
  kFrame = 0x95,
  kByteArray8 = 0x96,
  kNextBuffer = 0x97,
  kReadOnlyBuffer = 0x98,
};

// The form of the argument behind an opcode.
enum class ArgumentForm : uint8_t {
  none,
  uint1,  // little-endian numbers of so many bytes
  uint2,
  uint4,
  uint8,
  int4,
  float8,         // an IEEE 754 double, big-endian
  line,           // text that ends at '\n'
  two_lines,      // a module and a name
  counted_uint1,  // a length in that form, and so many bytes
  counted_uint4,
  counted_int4,
  counted_uint8,
};

struct OpcodeInfo {
  const char* name = nullptr;  // pickletools'; nullptr: not an opcode
  ArgumentForm argument = ArgumentForm::none;
};
// By opcode.
extern const std::array<OpcodeInfo, 256> kOpcodes;

// The argument of an opcode; fields that its form lacks are empty.
template <typename Text>
struct Argument {
  uint64_t number = 0;    // of int4 with its sign extended, of float8 its bits
  Text text = {};         // of a line and of counted bytes
  Text second_text = {};  // of the second line
};

// Reads the argument of `opcode` at `cursor` and moves behind it. A Cursor is like a ByteReader. It
// has read<Number>(), and text(size) and line(), which return a text of its kind; length(size)
// checks the length of a counted_int4. Throws the errors of the cursor.
template <typename Cursor>
auto read_argument(Cursor& cursor, uint8_t opcode) {
  Argument<decltype(cursor.line())> argument;
  switch (kOpcodes[opcode].argument) {
    case ArgumentForm::none:
      break;
    case ArgumentForm::uint1:
      argument.number = cursor.template read<uint8_t>();
      break;
    case ArgumentForm::uint2:
      argument.number = cursor.template read<uint16_t>();
      break;
    case ArgumentForm::uint4:
      argument.number = cursor.template read<uint32_t>();
      break;
    case ArgumentForm::uint8:
      argument.number = cursor.template read<uint64_t>();
      break;
    case ArgumentForm::int4:
      argument.number = static_cast<uint64_t>(int64_t{cursor.template read<int32_t>()});
      break;
    case ArgumentForm::float8:
      argument.number = __builtin_bswap64(cursor.template read<uint64_t>());
      break;
    case ArgumentForm::line:
      argument.text = cursor.line();
      break;
    case ArgumentForm::two_lines:
      argument.text = cursor.line();
      argument.second_text = cursor.line();
      break;
    case ArgumentForm::counted_uint1:
      argument.text = cursor.text(cursor.template read<uint8_t>());
      break;
    case ArgumentForm::counted_uint4:
      argument.text = cursor.text(cursor.template read<uint32_t>());
      break;
    case ArgumentForm::counted_int4:
      argument.text = cursor.text(cursor.length(cursor.template read<int32_t>()));
      break;
    case ArgumentForm::counted_uint8:
      argument.text = cursor.text(cursor.template read<uint64_t>());
      break;
  }
  return argument;
}

}  // namespace dsckpt::pickle
