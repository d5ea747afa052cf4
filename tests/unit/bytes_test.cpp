#include "base/bytes.h"

#include <gtest/gtest.h>

#include <limits>
#include <string>

#include "support/expect_error.h"

namespace dsckpt {
namespace {

constexpr uint64_t kMax = std::numeric_limits<uint64_t>::max();

TEST(CheckedArithmetic, ThrowsInsteadOfWrapping) {
  EXPECT_EQ(checked_add(kMax - 1, 1), kMax);
  EXPECT_ERROR(checked_add(kMax, 1), CorruptError, "overflows");
  EXPECT_EQ(checked_mul(uint64_t{1} << 32, (uint64_t{1} << 32) - 1), kMax - 0xffffffffu);
  EXPECT_ERROR(checked_mul(uint64_t{1} << 32, uint64_t{1} << 32), CorruptError, "overflows");
  EXPECT_EQ(checked_mul(kMax, 0), 0u);
}

TEST(CheckedArithmetic, RoundsUp) {
  EXPECT_EQ(round_up(0, 64), 0u);
  EXPECT_EQ(round_up(1, 64), 64u);
  EXPECT_EQ(round_up(64, 64), 64u);
  EXPECT_EQ(round_up(65, 64), 128u);
  EXPECT_EQ(round_up(7, 3), 9u);
  EXPECT_ERROR(round_up(kMax, 64), CorruptError, "overflows");
}

TEST(CheckedArithmetic, DividesUpToTheTopOfTheRange) {
  EXPECT_EQ(div_ceil(0, 7), 0u);
  EXPECT_EQ(div_ceil(1, 7), 1u);
  EXPECT_EQ(div_ceil(7, 7), 1u);
  EXPECT_EQ(div_ceil(8, 7), 2u);
  EXPECT_EQ(div_ceil(kMax, 2), uint64_t{1} << 63);
}

TEST(LittleEndian, AppendsLowestByteFirst) {
  std::string out = "x";
  append_le<uint32_t>(out, 0x04030201u);
  append_le<uint16_t>(out, uint16_t{0x0605});
  EXPECT_EQ(out, "x\x01\x02\x03\x04\x05\x06");
}

TEST(LittleEndian, LoadsAndStoresAtOddAddresses) {
  std::byte bytes[16] = {};
  store_le<uint64_t>(bytes + 3, 0x1122334455667788u);
  EXPECT_EQ(bytes[3], std::byte{0x88});
  EXPECT_EQ(bytes[10], std::byte{0x11});
  EXPECT_EQ(bytes[11], std::byte{0});
  EXPECT_EQ(load_le<uint64_t>(bytes + 3), 0x1122334455667788u);
}

TEST(ByteReader, ReadsInSequenceAndCountsFromItsBase) {
  ByteReader reader(as_byte_span(std::string_view("\x01\x02\x00text\nrest", 12)), 100);
  EXPECT_EQ(reader.read<uint8_t>(), 1u);
  EXPECT_EQ(reader.read<uint16_t>(), 2u);
  EXPECT_EQ(reader.line(), "text");
  EXPECT_EQ(reader.offset(), 108u);
  EXPECT_EQ(reader.position(), 8u);
  EXPECT_EQ(reader.remaining(), 4u);
  EXPECT_EQ(reader.text(4), "rest");
  EXPECT_TRUE(reader.at_end());
}

TEST(ByteReader, GivesAnEmptyLine) {
  ByteReader reader(as_byte_span("\n"));
  EXPECT_EQ(reader.line(), "");
  EXPECT_TRUE(reader.at_end());
}

TEST(ByteReader, RefusesToLeaveItsBytesAndStaysWhereItWas) {
  ByteReader reader(as_byte_span("abc"), 40);
  reader.take(1);
  EXPECT_ERROR(reader.take(3), CorruptError, "at 41: 3 bytes expected, 2 left");
  EXPECT_ERROR(reader.take(kMax), CorruptError, "2 left");
  EXPECT_ERROR(reader.read<uint32_t>(), CorruptError, "4 bytes expected");
  EXPECT_ERROR(reader.line(), CorruptError, "unterminated line");
  EXPECT_EQ(reader.text(2), "bc");
  EXPECT_EQ(reader.take(0).size(), 0u);
}

TEST(Error, SpeaksOfThePlaceAndOuterLayersFillInWhatIsUnknown) {
  try {
    in_context({.file = "a.pt", .member = "outer", .tensor = "w"}, [] {
      throw std::move(IoError({.member = "data/7", .offset = 12}, "cannot read", 5))
          .with_hint("look at the disk");
    });
    FAIL() << "nothing thrown";
  } catch (const IoError& error) {
    EXPECT_STREQ(error.what(), "a.pt: data/7: w: at 12: cannot read: Input/output error");
    EXPECT_EQ(error.message(), "cannot read: Input/output error");
    EXPECT_EQ(error.kind(), ErrorKind::io);
    EXPECT_EQ(error.errno_value(), 5);
    EXPECT_EQ(error.hint(), "look at the disk");
    EXPECT_EQ(error.where().member, "data/7");
  }
}

TEST(Error, KeepsItsClassWhateverIsAdded) {
  const auto in_w = [](auto error) {
    in_context({.tensor = "w"}, [&] { throw std::move(error).with_hint("hint"); });
  };
  EXPECT_ERROR(in_w(UsageError("no")), UsageError, "w: no");
  EXPECT_ERROR(in_w(CorruptError({}, "no")), CorruptError, "w: no");
  EXPECT_ERROR(in_w(InconsistentError({}, "no")), InconsistentError, "w: no");
  EXPECT_ERROR(in_w(UnsupportedError({}, "no")), UnsupportedError, "w: no");
  EXPECT_ERROR(in_w(IoError({}, "no", 0)), IoError, "w: no");
  EXPECT_ERROR(in_w(InterruptedError()), InterruptedError, "w: interrupted");
}

TEST(Error, ContextPassesResultsThrough) {
  EXPECT_EQ(in_context({}, [] { return 3; }), 3);
}

}  // namespace
}  // namespace dsckpt
