#include "pickle/opcodes.h"

#include <gtest/gtest.h>

#include <map>
#include <string>

#include "base/bytes.h"
#include "pickle/trace.h"

namespace dsckpt::pickle {
namespace {

using namespace std::string_literals;

// An opcode as pickletools describes it.
struct Expected {
  uint8_t opcode;
  std::string name;
  std::string argument;  // "": none
  int size;              // of the argument; below 0: pickletools.TAKEN_FROM_ARGUMENT1, ...
};

const Expected kExpected[] = {
#include "unit/pickle_opcodes.inc"
};

ArgumentForm form_of(const Expected& expected) {
  if (expected.argument == "stringnl_noescape_pair") return ArgumentForm::two_lines;
  static const std::map<int, ArgumentForm> kBySize = {
      {0, ArgumentForm::none},           {-1, ArgumentForm::line},
      {-2, ArgumentForm::counted_uint1}, {-3, ArgumentForm::counted_int4},
      {-4, ArgumentForm::counted_uint4}, {-5, ArgumentForm::counted_uint8}};
  if (expected.size <= 0) return kBySize.at(expected.size);
  static const std::map<std::string, ArgumentForm> kByName = {
      {"uint1", ArgumentForm::uint1}, {"uint2", ArgumentForm::uint2},
      {"uint4", ArgumentForm::uint4}, {"uint8", ArgumentForm::uint8},
      {"int4", ArgumentForm::int4},   {"float8", ArgumentForm::float8}};
  return kByName.at(expected.argument);
}

TEST(Opcodes, AreThoseOfPickletools) {
  std::map<uint8_t, const Expected*> expected;
  for (const Expected& opcode : kExpected) expected[opcode.opcode] = &opcode;
  ASSERT_EQ(expected.size(), 68u);
  for (size_t i = 0; i < kOpcodes.size(); ++i) {
    const auto found = expected.find(static_cast<uint8_t>(i));
    if (found == expected.end()) {
      EXPECT_EQ(kOpcodes[i].name, nullptr) << i;
      continue;
    }
    ASSERT_NE(kOpcodes[i].name, nullptr) << found->second->name;
    EXPECT_EQ(kOpcodes[i].name, found->second->name);
    EXPECT_EQ(kOpcodes[i].argument, form_of(*found->second)) << found->second->name;
  }
}

struct Cursor : ByteReader {
  using ByteReader::ByteReader;
  static uint64_t length(int32_t size) { return static_cast<uint64_t>(size); }
};

TEST(Opcodes, ArgumentsAreRead) {
  struct Case {
    Opcode opcode;
    std::string bytes;
    uint64_t number;
    std::string text;
    std::string second_text;
  };
  const Case cases[] = {
      {kNone, "", 0, "", ""},
      {kBinInt1, "\xfe"s, 0xfe, "", ""},
      {kBinInt2, "\x01\xfe"s, 0xfe01, "", ""},
      {kLongBinPut, "\x01\x02\x03\xfe"s, 0xfe030201, "", ""},
      {kFrame, "\x01\0\0\0\0\0\0\xfe"s, 0xfe00000000000001, "", ""},
      {kBinInt, "\xfe\xff\xff\xff"s, ~uint64_t{1}, "", ""},
      {kBinFloat, "\x3f\xf8\0\0\0\0\0\0"s, 0x3ff8000000000000, "", ""},  // 1.5
      {kInt, "12\n"s, 0, "12", ""},
      {kGlobal, "os\nsystem\n"s, 0, "os", "system"},
      {kShortBinBytes,
       "\x02"
       "ab"s,
       0, "ab", ""},
      {kBinUnicode, "\x02\0\0\0ab"s, 0, "ab", ""},
      {kLong4, "\x02\0\0\0ab"s, 0, "ab", ""},
      {kByteArray8, "\x02\0\0\0\0\0\0\0ab"s, 0, "ab", ""},
  };
  for (const Case& c : cases) {
    SCOPED_TRACE(kOpcodes[c.opcode].name);
    const std::string bytes = c.bytes + "rest";
    Cursor cursor(as_byte_span(bytes));
    const auto argument = read_argument(cursor, c.opcode);
    EXPECT_EQ(argument.number, c.number);
    EXPECT_EQ(argument.text, c.text);
    EXPECT_EQ(argument.second_text, c.second_text);
    EXPECT_EQ(cursor.remaining(), 4u);
  }
}

// An argument of three bytes, or of as many as its form has.
std::string sample(const Expected& expected) {
  static const std::map<int, size_t> kLengths = {{-2, 1}, {-3, 4}, {-4, 4}, {-5, 8}};
  if (expected.argument == "stringnl_noescape_pair") return "abc\nabc\n";
  if (expected.size == -1) return "123\n";
  if (expected.size >= 0) return std::string(static_cast<size_t>(expected.size), '\1');
  return "\3" + std::string(kLengths.at(expected.size) - 1, '\0') + "abc";
}

TEST(Opcodes, TracesPassEveryArgument) {
  for (const Expected& expected : kExpected) {
    if (expected.name == "STOP") continue;
    SCOPED_TRACE(expected.name);
    const std::string opcode = static_cast<char>(expected.opcode) + sample(expected);
    const std::string pickle = opcode + "N.";
    const Trace whole = trace(ByteSource(as_byte_span(pickle)));
    EXPECT_EQ(whole.problem, "");
    EXPECT_EQ(whole.end, pickle.size());

    if (expected.argument.empty()) continue;
    const std::string cut = opcode.substr(0, opcode.size() - 1);
    EXPECT_EQ(trace(ByteSource(as_byte_span(cut))).problem, "the bytes end inside the pickle");
  }
}

}  // namespace
}  // namespace dsckpt::pickle
