#include "io/packed_file.h"

#include <gtest/gtest.h>

#include <atomic>
#include <string>
#include <thread>
#include <vector>

#include "codec/frame.h"
#include "dsckpt/error.h"
#include "support/defects.h"
#include "support/expect_error.h"
#include "support/packed_tools.h"

namespace dsckpt {
namespace {

using test::Content;
using test::FrameBytes;
using test::make_content;
using test::packed_bytes;
using test::raw_frame;
using test::read_content;
using test::StoredBytes;

FrameBytes frame_of(const std::string& content, PlaneLayout layout) {
  FrameEncoder encoder(kDefaultPackLevel);
  return {content, std::string(as_text(encoder.encode(as_byte_span(content), layout)))};
}

// Frames of all layouts and of odd sizes.
struct Sample {
  std::vector<FrameBytes> frames;
  std::string content;

  Sample() {
    size_t size = 1;
    for (const Content kind : test::kContents) {
      for (const PlaneLayout layout : test::kLayouts) {
        frames.push_back(frame_of(make_content(kind, size, size), layout));
        content += frames.back().content;
        size = size * 5 / 4 + 1;
      }
    }
  }
};

TEST(PackedFile, HoldsNothing) {
  const StoredBytes stored(packed_bytes({}));
  PackedFile file(stored);
  EXPECT_EQ(file.size(), 0u);
  EXPECT_EQ(read_content(file), "");
  EXPECT_FALSE(file.sha256());
  EXPECT_EQ(file.stored_bytes(0, 0), 0);
}

TEST(PackedFile, ReadsFramesThatAreNotCompressed) {
  std::vector<FrameBytes> frames;
  std::string content;
  for (const PlaneLayout layout : test::kLayouts) {
    content += frames.emplace_back(FrameBytes{"frame " + std::to_string(layout.width), ""}).content;
    frames.back().stored = raw_frame(layout, frames.back().content);
  }
  const StoredBytes stored(packed_bytes(frames));
  PackedFile file(stored);
  EXPECT_EQ(read_content(file), content);
}

TEST(PackedFile, ReadsAnyRangeWhateverTheOrderOfItsFrames) {
  const Sample sample;
  std::vector<size_t> reversed;
  for (size_t i = sample.frames.size(); i-- > 0;) reversed.push_back(i);
  for (const auto& order : {std::vector<size_t>{}, reversed}) {
    const StoredBytes stored(packed_bytes(sample.frames, order, std::string(32, '\3')));
    PackedFile file(stored);
    ASSERT_EQ(file.size(), sample.content.size());
    ASSERT_TRUE(read_content(file) == sample.content);
    ASSERT_TRUE(file.sha256());
    EXPECT_EQ((*file.sha256())[0], std::byte{3});
    std::mt19937_64 random(5);
    for (int i = 0; i < 2000; ++i) {
      const uint64_t offset = random() % (file.size() + 1);
      const uint64_t size = std::min(random() % (1 << (random() % 16)), file.size() - offset);
      ASSERT_TRUE(read_content(file, offset, size) == sample.content.substr(offset, size))
          << offset << " " << size;
    }
  }
}

TEST(PackedFile, IsReadByManyThreads) {
  const Sample sample;
  const StoredBytes stored(packed_bytes(sample.frames));
  PackedFile file(stored);
  std::atomic<int> wrong{0};
  std::vector<std::thread> threads;
  for (uint64_t t = 0; t < 6; ++t) {
    threads.emplace_back([&, t] {
      std::mt19937_64 random(t);
      for (int i = 0; i < 300; ++i) {
        const uint64_t offset = random() % file.size();
        const uint64_t size = std::min<uint64_t>(random() % 9000, file.size() - offset);
        if (read_content(file, offset, size) != sample.content.substr(offset, size)) ++wrong;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0);
}

TEST(PackedFile, SaysWhereItsContentIsStored) {
  const std::vector<FrameBytes> frames{
      {std::string(100, 'a'), raw_frame({}, std::string(100, 'a'))},
      {std::string(50, 'b'), raw_frame({}, std::string(50, 'b'))}};
  const StoredBytes stored(packed_bytes(frames, {1, 0}));
  PackedFile file(stored);
  // 6 bytes in front of each plane; the second frame is the first in the file.
  EXPECT_EQ(file.stored_offset(0), 16u + 56);
  EXPECT_EQ(file.stored_offset(99), 16u + 56);
  EXPECT_EQ(file.stored_offset(100), 16u);
  EXPECT_DOUBLE_EQ(file.stored_bytes(0, 150), 106 + 56);
  EXPECT_DOUBLE_EQ(file.stored_bytes(0, 100), 106);
  EXPECT_DOUBLE_EQ(file.stored_bytes(50, 75), 53 + 28);
  EXPECT_DOUBLE_EQ(file.stored_bytes(150, 0), 0);
}

TEST(PackedFile, ReadsOnlyTheFramesThatAreAskedFor) {
  const Sample sample;
  const size_t last = sample.frames.size() - 1;
  std::string bytes = packed_bytes(sample.frames);
  const size_t last_at = bytes.rfind(sample.frames[last].stored);
  bytes[last_at + 8] ^= 1;
  const StoredBytes stored(bytes, "shard.pt.dspack");
  PackedFile file(stored);
  const uint64_t begin = file.size() - sample.frames[last].content.size();
  EXPECT_TRUE(read_content(file, 0, begin) == sample.content.substr(0, begin));
  // Now and whenever it is tried again.
  for (int i = 0; i < 2; ++i) {
    EXPECT_ERROR(read_content(file, begin - 1, 2), CorruptError,
                 "shard.pt.dspack: at " + std::to_string(last_at) + ": the frame of bytes " +
                     std::to_string(begin) + " to " + std::to_string(file.size()) +
                     " does not match its checksum");
  }
}

TEST(PackedFile, RefusesAFrameThatCannotBeDecompressed) {
  std::string frame = raw_frame({4, true}, "0123456789abcdef");
  frame[1] = 1;  // zstd
  const std::string bytes = packed_bytes({{"0123456789abcdef", frame}});
  const StoredBytes stored(bytes);
  PackedFile file(stored);
  EXPECT_ERROR(read_content(file), CorruptError,
               "x.pt.dspack: at 16: the frame of bytes 0 to 16 cannot be decompressed");
}

TEST(PackedFile, RefusesAFrameThatBecomesSomethingElse) {
  const std::string bytes = packed_bytes({{"0123456789abcdef", raw_frame({}, "0123456789abcdeX")}});
  const StoredBytes stored(bytes);
  PackedFile file(stored);
  EXPECT_ERROR(read_content(file), CorruptError,
               "the frame of bytes 0 to 16 does not match its checksum after decompression");
}

TEST(PackedFile, NamesAFileThatIsNotOne) {
  EXPECT_ERROR(PackedFile(StoredBytes("", "e.pt.dspack")), CorruptError,
               "e.pt.dspack: at 0: is too short for a packed file");
  EXPECT_ERROR(PackedFile(StoredBytes(std::string(100, 'x'), "e.pt.dspack")), CorruptError,
               "e.pt.dspack: at 0: not a packed file");
  EXPECT_ERROR(PackedFile(StoredBytes(test::kPackedHeader + std::string(100, 'x'), "e.pt.dspack")),
               CorruptError, "e.pt.dspack: at 84: the end of a packed file is missing: cut short?");
}

}  // namespace
}  // namespace dsckpt
