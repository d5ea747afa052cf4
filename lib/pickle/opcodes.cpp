#include "pickle/opcodes.h"

namespace dsckpt::pickle {
namespace {

using Form = ArgumentForm;

struct Entry {
  Opcode opcode;
  const char* name;
  Form argument = Form::none;
};

constexpr Entry kEntries[] = {
    {kMark, "MARK"},
    {kStop, "STOP"},
    {kPop, "POP"},
    {kPopMark, "POP_MARK"},
    {kDup, "DUP"},
    {kFloat, "FLOAT", Form::line},
    {kInt, "INT", Form::line},
    {kBinInt, "BININT", Form::int4},
    {kBinInt1, "BININT1", Form::uint1},
    {kLong, "LONG", Form::line},
    {kBinInt2, "BININT2", Form::uint2},
    {kNone, "NONE"},
    {kPersId, "PERSID", Form::line},
    {kBinPersId, "BINPERSID"},
    {kReduce, "REDUCE"},
    {kString, "STRING", Form::line},
    {kBinString, "BINSTRING", Form::counted_int4},
    {kShortBinString, "SHORT_BINSTRING", Form::counted_uint1},
    {kUnicode, "UNICODE", Form::line},
    {kBinUnicode, "BINUNICODE", Form::counted_uint4},
    {kAppend, "APPEND"},
    {kBuild, "BUILD"},
    {kGlobal, "GLOBAL", Form::two_lines},
    {kDict, "DICT"},
    {kEmptyDict, "EMPTY_DICT"},
    {kAppends, "APPENDS"},
    {kGet, "GET", Form::line},
    {kBinGet, "BINGET", Form::uint1},
    {kInst, "INST", Form::two_lines},
    {kLongBinGet, "LONG_BINGET", Form::uint4},
    {kList, "LIST"},
    {kEmptyList, "EMPTY_LIST"},
    {kObj, "OBJ"},
    {kPut, "PUT", Form::line},
    {kBinPut, "BINPUT", Form::uint1},
    {kLongBinPut, "LONG_BINPUT", Form::uint4},
    {kSetItem, "SETITEM"},
    {kTuple, "TUPLE"},
    {kEmptyTuple, "EMPTY_TUPLE"},
    {kSetItems, "SETITEMS"},
    {kBinFloat, "BINFLOAT", Form::float8},
    {kProto, "PROTO", Form::uint1},
    {kNewObj, "NEWOBJ"},
    {kExt1, "EXT1", Form::uint1},
    {kExt2, "EXT2", Form::uint2},
    {kExt4, "EXT4", Form::int4},
    {kTuple1, "TUPLE1"},
    {kTuple2, "TUPLE2"},
    {kTuple3, "TUPLE3"},
    {kNewTrue, "NEWTRUE"},
    {kNewFalse, "NEWFALSE"},
    {kLong1, "LONG1", Form::counted_uint1},
    {kLong4, "LONG4", Form::counted_int4},
    {kBinBytes, "BINBYTES", Form::counted_uint4},
    {kShortBinBytes, "SHORT_BINBYTES", Form::counted_uint1},
    {kShortBinUnicode, "SHORT_BINUNICODE", Form::counted_uint1},
    {kBinUnicode8, "BINUNICODE8", Form::counted_uint8},
    {kBinBytes8, "BINBYTES8", Form::counted_uint8},
    {kEmptySet, "EMPTY_SET"},
    {kAddItems, "ADDITEMS"},
    {kFrozenSet, "FROZENSET"},
    {kNewObjEx, "NEWOBJ_EX"},
    {kStackGlobal, "STACK_GLOBAL"},
    {kMemoize, "MEMOIZE"},
    {kFrame, "FRAME", Form::uint8},
    {kByteArray8, "BYTEARRAY8", Form::counted_uint8},
    {kNextBuffer, "NEXT_BUFFER"},
    {kReadOnlyBuffer, "READONLY_BUFFER"},
};

constexpr std::array<OpcodeInfo, 256> by_opcode() {
  std::array<OpcodeInfo, 256> infos{};
  for (const Entry& entry : kEntries) infos[entry.opcode] = {entry.name, entry.argument};
  return infos;
}

}  // namespace

constexpr std::array<OpcodeInfo, 256> kOpcodes = by_opcode();

}  // namespace dsckpt::pickle
