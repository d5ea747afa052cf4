#include "codec/packed_index.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "codec/frame.h"
#include "dsckpt/error.h"
#include "support/defects.h"
#include "support/expect_error.h"
#include "support/packed_tools.h"

namespace dsckpt {
namespace {

using test::index_bytes;
using test::IndexEntry;
using test::kPackedHeader;

constexpr uint64_t kHeader = PackedIndex::kHeaderSize;
constexpr uint32_t kLargest = kLargestFrame;

// Reads what stands behind the frames of a file that begins with `header`.
PackedIndex parse(const std::string& trailer, uint64_t offset,
                  const std::string& header = kPackedHeader) {
  const ByteSpan bytes = as_byte_span(trailer);
  const ByteSpan footer = bytes.last(PackedIndex::kFooterSize);
  const auto place = PackedIndex::find(as_byte_span(header), footer, offset + trailer.size());
  EXPECT_EQ(place.offset, offset);
  return PackedIndex::parse(bytes.first(place.size), footer, place);
}

// Index and footer of frames that lie back to back behind the header.
std::string in_order(std::vector<IndexEntry> entries) {
  uint64_t offset = kHeader;
  for (IndexEntry& entry : entries) {
    entry.offset = offset;
    offset += entry.stored_size;
  }
  return index_bytes(offset, entries.size(), entries);
}

TEST(PackedIndex, WritesWhatTheFormatSays) {
  EXPECT_EQ(PackedIndex::header(), kPackedHeader);
  PackedIndex index;
  index.frames = {{16, 50, 100, 0x1122334455667788, 3}, {66, 7, 1 << 20, 4, 5}};
  const std::vector<IndexEntry> entries{{16, 50, 100, 0x1122334455667788, 3},
                                        {66, 7, 1 << 20, 4, 5}};
  EXPECT_EQ(index.trailer(73), index_bytes(73, 2, entries));
  index.sha256.emplace();
  index.sha256->fill(std::byte{7});
  EXPECT_EQ(index.trailer(73), index_bytes(73, 2, entries, std::string(32, '\7')));
  EXPECT_EQ(index.content_size(), 100u + (1 << 20));
}

TEST(PackedIndex, ReadsWhatTheFormatSays) {
  const std::string trailer =
      index_bytes(73, 2, {{23, 50, 100, 11, 12}, {16, 7, 1, 13, 14}}, std::string(32, '\7'));
  const PackedIndex index = parse(trailer, 73);
  ASSERT_EQ(index.frames.size(), 2u);
  EXPECT_EQ(index.frames[0].offset, 23u);
  EXPECT_EQ(index.frames[0].stored_size, 50u);
  EXPECT_EQ(index.frames[0].content_size, 100u);
  EXPECT_EQ(index.frames[0].content_hash, 11u);
  EXPECT_EQ(index.frames[0].stored_hash, 12u);
  EXPECT_EQ(index.frames[1].offset, 16u);
  ASSERT_TRUE(index.sha256);
  EXPECT_EQ((*index.sha256)[31], std::byte{7});
  EXPECT_EQ(index.content_size(), 101u);
  EXPECT_FALSE(parse(index_bytes(kHeader, 0, {}), kHeader).sha256);
}

TEST(PackedIndex, HoldsAsManyFramesAsAnyFileHas) {
  std::vector<IndexEntry> entries(100000, {0, 6 + 41, 6, 1, 2});
  const PackedIndex index = parse(in_order(entries), kHeader + 47 * entries.size());
  EXPECT_EQ(index.frames.size(), entries.size());
  EXPECT_EQ(index.frames.back().offset, kHeader + 47 * (entries.size() - 1));
}

TEST(PackedIndex, RefusesAnotherBeginning) {
  const std::string good = index_bytes(kHeader, 0, {});
  test::for_each_bit_flip(kPackedHeader, 0, 16, [&](const std::string& header, size_t at) {
    const auto kind = test::error_kind([&] { parse(good, kHeader, header); });
    EXPECT_EQ(kind, at >= 8 && at < 12 ? ErrorKind::unsupported : ErrorKind::corrupt) << at;
  });
  std::string second = kPackedHeader;
  second[8] = 2;
  EXPECT_ERROR(parse(good, kHeader, second), UnsupportedError,
               "at 8: a packed file of version 2; this program reads version 1");
}

// The index and the footer with one field changed and the checksum made to fit.
TEST(PackedIndex, RefusesAnIndexThatIsNotWhereTheFooterSays) {
  const std::string good = index_bytes(kHeader, 0, {});
  const auto with = [&](uint64_t offset, uint64_t size) {
    std::string out = good.substr(0, 40);
    append_le(out, offset);
    append_le(out, size);
    append_le(out, test::hash_of(out));
    return out + "DSPEND\r\n";
  };
  EXPECT_NO_THROW(parse(with(kHeader, 40), kHeader));
  const uint64_t none = ~uint64_t{0};
  for (const auto& [offset, size] : std::vector<std::pair<uint64_t, uint64_t>>{{0, 56},
                                                                               {15, 41},
                                                                               {17, 39},
                                                                               {kHeader, 39},
                                                                               {kHeader, 41},
                                                                               {kHeader, none},
                                                                               {none, 40},
                                                                               {none, 57},
                                                                               {none - 39, 96},
                                                                               {kHeader + 40, 0},
                                                                               {kHeader + 88, 0}}) {
    const std::string bad = with(offset, size);
    const auto footer = as_byte_span(bad).last(PackedIndex::kFooterSize);
    EXPECT_ERROR(PackedIndex::find(as_byte_span(kPackedHeader), footer, kHeader + bad.size()),
                 CorruptError, "at 56: the index is not where the footer says");
  }
}

TEST(PackedIndex, RefusesAnotherNumberOfFrames) {
  for (const uint64_t count : {uint64_t{0}, uint64_t{2}, uint64_t{1} << 35, ~uint64_t{0}}) {
    EXPECT_ERROR(parse(index_bytes(66, count, {{16, 50, 100, 1, 2}}), 66), CorruptError,
                 "another number of frames");
  }
  std::string part = index_bytes(66, 1, {{16, 50, 100, 1, 2}});
  part.insert(60, "x");  // not a whole number of entries
  std::string footer = part.substr(0, part.size() - 32);
  append_le(footer, uint64_t{66});
  append_le(footer, uint64_t{73});
  append_le(footer, test::hash_of(footer));
  EXPECT_ERROR(parse(footer + "DSPEND\r\n", 66), CorruptError, "not where the footer says");
}

TEST(PackedIndex, RefusesAChecksumThatDoesNotFit) {
  const std::string good = index_bytes(66, 1, {{16, 50, 100, 1, 2}});
  EXPECT_NO_THROW(parse(good, 66));
  test::for_each_bit_flip(good, 0, good.size(), [&](const std::string& bad, size_t at) {
    EXPECT_EQ(test::error_kind([&] { parse(bad, 66); }), ErrorKind::corrupt) << at;
  });
}

TEST(PackedIndex, RefusesFramesOfSizesThatThereAreNot) {
  const auto refuse = [](uint32_t stored, uint32_t content) {
    EXPECT_ERROR(
        parse(in_order({{0, 50, 100, 1, 2}, {0, stored, content, 1, 2}}), kHeader + 50 + stored),
        CorruptError, " in a frame of " + std::to_string(stored));
  };
  refuse(10, 0);
  refuse(kLargest, kLargest + 1);
  refuse(100, ~uint32_t{0});
  refuse(1 + kMostFrameOverhead + 1, 1);
  refuse(kLargest + kMostFrameOverhead + 1, kLargest);
  refuse(~uint32_t{0}, kLargest);
  EXPECT_NO_THROW(parse(in_order({{0, kLargest + 41, kLargest, 1, 2}}), kHeader + kLargest + 41));
  EXPECT_NO_THROW(parse(in_order({{0, 42, 1, 1, 2}}), kHeader + 42));
}

// A table of 2 MiB must not stand for a content of a terabyte: that is more than any frame can be
// compressed.
TEST(PackedIndex, RefusesMoreContentThanTheStoredBytesCanBecome) {
  std::vector<IndexEntry> entries(1 << 16, {0, 0, kLargest, 1, 2});
  EXPECT_EQ(test::error_kind([&] { parse(in_order(entries), kHeader); }), ErrorKind::corrupt);
  for (const uint32_t stored : {0u, 1u, 6u, 500u}) {
    const std::vector<IndexEntry> one{{0, stored, kLargest, 1, 2}};
    EXPECT_EQ(test::error_kind([&] { parse(in_order(one), kHeader + stored); }),
              ErrorKind::corrupt);
  }
}

TEST(PackedIndex, RefusesFramesThatOverlapOrLeaveBytesOut) {
  const auto refuse = [](uint64_t end, const std::vector<IndexEntry>& entries) {
    EXPECT_ERROR(parse(index_bytes(end, entries.size(), entries), end), CorruptError,
                 "of no frame");
  };
  refuse(116, {{16, 50, 100, 1, 2}, {65, 50, 100, 1, 2}});             // one byte shared
  refuse(116, {{16, 50, 100, 1, 2}, {16, 50, 100, 1, 2}});             // one frame twice
  refuse(117, {{16, 50, 100, 1, 2}, {67, 50, 100, 1, 2}});             // a hole
  refuse(117, {{17, 50, 100, 1, 2}, {67, 50, 100, 1, 2}});             // in front of all
  refuse(117, {{16, 50, 100, 1, 2}, {66, 50, 100, 1, 2}});             // behind all
  refuse(115, {{16, 50, 100, 1, 2}, {66, 50, 100, 1, 2}});             // into the index
  refuse(116, {{0, 66, 100, 1, 2}, {66, 50, 100, 1, 2}});              // over the header
  refuse(116, {{~uint64_t{0}, 50, 100, 1, 2}, {16, 100, 100, 1, 2}});  // outside
  refuse(116, {{16, 100, 100, 1, 2}, {~uint64_t{0} - 49, 50, 100, 1, 2}});
  refuse(16 + 50, {});
}

}  // namespace
}  // namespace dsckpt
