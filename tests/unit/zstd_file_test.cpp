#include "io/zstd_file.h"

#include <gtest/gtest.h>
#include <zstd_errors.h>

#include <atomic>
#include <map>
#include <memory>
#include <new>
#include <string>
#include <thread>
#include <tuple>
#include <vector>

#include "dsckpt/error.h"
#include "io/zstd_frames.h"
#include "support/defects.h"
#include "support/expect_error.h"
#include "support/packed_tools.h"
#include "support/plan_tools.h"

namespace dsckpt {
namespace {

using test::Content;
using test::make_content;
using test::read_content;

using test::kMiB;

struct FrameOptions {
  bool content_size = true;
  bool checksum = false;
  int level = 1;
};
constexpr FrameOptions kVariants[] = {{true, false}, {true, true}, {false, false}, {false, true}};

std::string zstd(std::string_view content, const FrameOptions& options = {}) {
  const std::unique_ptr<ZSTD_CCtx, size_t (*)(ZSTD_CCtx*)> context(ZSTD_createCCtx(),
                                                                   ZSTD_freeCCtx);
  ZSTD_CCtx_setParameter(context.get(), ZSTD_c_compressionLevel, options.level);
  ZSTD_CCtx_setParameter(context.get(), ZSTD_c_contentSizeFlag, options.content_size);
  ZSTD_CCtx_setParameter(context.get(), ZSTD_c_checksumFlag, options.checksum);
  std::string out(ZSTD_compressBound(content.size()), '\0');
  out.resize(ZSTD_compress2(context.get(), out.data(), out.size(), content.data(), content.size()));
  return out;
}

std::string skippable(std::string_view bytes, uint32_t variant = 0) {
  std::string out;
  append_le(out, 0x184D2A50 + variant);
  append_le(out, static_cast<uint32_t>(bytes.size()));
  return out + std::string(bytes);
}

struct TableEntry {
  uint32_t stored;
  uint32_t content;
};
std::string seek_table(const std::vector<TableEntry>& entries, bool checksums = false) {
  std::string out;
  for (const TableEntry& entry : entries) {
    append_le(out, entry.stored);
    append_le(out, entry.content);
    if (checksums) append_le(out, uint32_t{0x12345678});
  }
  append_le(out, static_cast<uint32_t>(entries.size()));
  out += static_cast<char>(checksums ? 0x80 : 0);
  append_le(out, 0x8F92EAB1);
  return skippable(out, 14);
}

// Contents of frames, and what a file has of them.
struct Frames {
  std::vector<std::string> contents;
  std::string content;
  std::string stored;
  std::vector<TableEntry> table;

  void add(const std::string& piece, const FrameOptions& options) {
    const std::string frame = zstd(piece, options);
    contents.push_back(piece);
    content += piece;
    stored += frame;
    table.push_back({static_cast<uint32_t>(frame.size()), static_cast<uint32_t>(piece.size())});
  }
};

Frames frames_of(const std::vector<size_t>& sizes, const FrameOptions& options = {}) {
  Frames frames;
  for (const size_t size : sizes) {
    frames.add(make_content(Content::text, size, frames.content.size() + 1), options);
  }
  return frames;
}

class Opened {
 public:
  explicit Opened(std::string_view bytes) : stored_(bytes, "x.pt.zst"), file_(stored_) {}
  ZstdFile& operator*() { return file_; }
  ZstdFile* operator->() { return &file_; }

 private:
  test::StoredBytes stored_;
  ZstdFile file_;
};

std::string decompress(std::string_view bytes) {
  Opened file(bytes);
  return read_content(*file);
}

void expect_every_range(std::string_view bytes, const std::string& content) {
  Opened file(bytes);
  ASSERT_EQ(file->size(), content.size());
  std::mt19937_64 random(content.size());
  for (int i = 0; i < 25; ++i) {
    const uint64_t offset = random() % (content.size() + 1);
    const uint64_t size = std::min(random() % (1 << (random() % 22)), content.size() - offset);
    ASSERT_TRUE(read_content(*file, offset, size) == content.substr(offset, size)) << offset;
  }
  ASSERT_TRUE(read_content(*file) == content);
}

TEST(ZstdFile, ReadsASingleFrame) {
  for (const FrameOptions& options : kVariants) {
    for (const size_t size : {1UL, 100UL, 70000UL, kMiB - 1, kMiB, kMiB + 1, 5 * kMiB + 77}) {
      const std::string content = make_content(Content::text, size, size);
      expect_every_range(zstd(content, options), content);
    }
  }
}

const std::vector<size_t> kSizes{1, 100, 0, kMiB - 101, 700001, kMiB, 3, 2 * kMiB, 12345};

TEST(ZstdFile, ReadsManyFrames) {
  for (const FrameOptions& options : kVariants) {
    const Frames frames = frames_of(kSizes, options);
    expect_every_range(frames.stored, frames.content);
    expect_every_range(frames.stored + seek_table(frames.table), frames.content);
    expect_every_range(frames.stored + seek_table(frames.table, true), frames.content);
  }
}

TEST(ZstdFile, ReadsFramesOfAllKindsWithSkippableOnesBetween) {
  std::string stored = skippable("");
  std::string content;
  for (size_t i = 0; i < 20; ++i) {
    const std::string piece = make_content(test::kContents[i % 6], i * 20011, i);
    content += piece;
    stored += zstd(piece, kVariants[i % 4]);
    stored += skippable(std::string(i * 7, 'x'), static_cast<uint32_t>(i % 16));
    if (i < 8) {
      expect_every_range(stored, content);
    }
  }
  expect_every_range(stored, content);
}

TEST(ZstdFile, HoldsNothing) {
  for (const FrameOptions& options : kVariants) EXPECT_EQ(decompress(zstd("", options)), "");
  EXPECT_EQ(decompress(skippable("abc")), "");
  EXPECT_EQ(decompress(zstd("") + skippable("") + zstd("", {false, true})), "");
  EXPECT_EQ(decompress(seek_table({})), "");
  Opened file(zstd(""));
  EXPECT_EQ(file->stored_bytes(0, 0), 0);
  EXPECT_EQ(file->stored_offset(0), 0u);
  EXPECT_ERROR(decompress(""), CorruptError, "x.pt.zst: is empty: no zstd file");
}

TEST(ZstdFile, IsReadByManyThreadsInAnyOrder) {
  for (const bool seekable : {false, true}) {
    Frames frames;
    if (seekable) {
      frames = frames_of(std::vector<size_t>(30, 300007));
      frames.stored += seek_table(frames.table);
    } else {
      frames = frames_of({9 * kMiB + 5});
    }
    Opened file(frames.stored);
    std::atomic<int> wrong{0};
    std::vector<std::thread> threads;
    for (uint64_t t = 0; t < 4; ++t) {
      threads.emplace_back([&, t] {
        constexpr uint64_t kStep = 200003;
        const uint64_t steps = file->size() / kStep;
        std::mt19937_64 random(t);
        for (uint64_t i = 0; i < steps; ++i) {
          const uint64_t step = t == 0 ? i : t == 1 ? steps - 1 - i : random() % steps;
          const auto expected = std::string_view(frames.content).substr(step * kStep, kStep);
          if (read_content(*file, step * kStep, kStep) != expected) ++wrong;
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
    EXPECT_EQ(wrong, 0);
  }
}

TEST(ZstdFile, SaysWhereItsContentIsStored) {
  const Frames frames = frames_of({1000, 3000});
  const double first = frames.table[0].stored;
  const double second = frames.table[1].stored;
  Opened file(frames.stored);
  EXPECT_DOUBLE_EQ(file->stored_bytes(0, 1000), first);
  EXPECT_DOUBLE_EQ(file->stored_bytes(1000, 3000), second);
  EXPECT_DOUBLE_EQ(file->stored_bytes(500, 2000), first / 2 + second / 2);
  EXPECT_DOUBLE_EQ(file->stored_bytes(4000, 0), 0);
  EXPECT_EQ(file->stored_offset(0), 0u);
  EXPECT_EQ(file->stored_offset(1000), frames.table[0].stored);
}

TEST(ZstdFile, RefusesASingleFrameCutOffAnywhere) {
  for (const FrameOptions& options : kVariants) {
    for (const size_t size : {0u, 1u, 300u, 4000u}) {
      test::for_each_truncation(
          zstd(make_content(Content::text, size), options), [&](const std::string& cut, size_t at) {
            ASSERT_EQ(test::error_kind([&] { decompress(cut); }), ErrorKind::corrupt) << at;
          });
    }
  }
}

// A file that is cut off behind a frame is a valid, shorter file.
TEST(ZstdFile, RefusesManyFramesCutOffAnywhereElseThanAtTheirEnds) {
  for (const FrameOptions& options : kVariants) {
    Frames frames = frames_of({100, 50, 0, 200}, options);
    std::map<size_t, std::string> whole;
    for (size_t i = 0, at = 0, content = 0; i < frames.table.size(); ++i) {
      at += frames.table[i].stored;
      content += frames.table[i].content;
      whole[at] = frames.content.substr(0, content);
    }
    frames.stored += seek_table(frames.table);
    test::for_each_truncation(frames.stored, [&](const std::string& cut, size_t at) {
      if (const auto frame = whole.find(at); frame != whole.end()) {
        ASSERT_EQ(decompress(cut), frame->second);
      } else {
        ASSERT_EQ(test::error_kind([&] { decompress(cut); }), ErrorKind::corrupt) << at;
      }
    });
  }
}

TEST(ZstdFile, RefusesBytesBehindTheFrames) {
  for (const FrameOptions& options : kVariants) {
    const std::string good = zstd(make_content(Content::text, 1000), options);
    for (size_t size = 1; size < 40; ++size) {
      EXPECT_EQ(test::error_kind([&] { decompress(good + std::string(size, 'g')); }),
                ErrorKind::corrupt)
          << size;
    }
    EXPECT_EQ(test::error_kind([&] { decompress(good + good.substr(0, 30)); }), ErrorKind::corrupt);
    EXPECT_EQ(test::error_kind([&] { decompress(good + skippable("abc").substr(0, 10)); }),
              ErrorKind::corrupt);
  }
}

TEST(ZstdFile, WithChecksumsNeverBecomesSomethingElse) {
  for (const bool content_size : {false, true}) {
    const FrameOptions options{content_size, true};
    const Frames frames = frames_of({200, 0, 100}, options);
    size_t refused = 0;
    test::for_each_bit_flip(frames.stored, 0, frames.stored.size(),
                            [&](const std::string& damaged, size_t at) {
                              try {
                                ASSERT_EQ(decompress(damaged), frames.content) << at;
                              } catch (const Error& error) {
                                ++refused;
                                ASSERT_TRUE(error.kind() == ErrorKind::corrupt ||
                                            error.kind() == ErrorKind::unsupported)
                                    << error.what();
                                ASSERT_EQ(error.where().file, "x.pt.zst");
                              }
                            });
    EXPECT_GT(refused, frames.stored.size() * 7);
  }
}

// The checksum of a frame that ends with a block of the cache, when what follows was read before.
TEST(ZstdFile, ChecksTheFrameThatIsReadBackwards) {
  for (const bool seekable : {false, true}) {
    Frames frames = frames_of({kMiB, kMiB, kMiB}, {true, true});
    frames.stored[frames.table[0].stored + frames.table[1].stored - 1] ^= 1;
    if (seekable) frames.stored += seek_table(frames.table);
    Opened file(frames.stored);
    EXPECT_EQ(read_content(*file, 2 * kMiB, 10), frames.content.substr(2 * kMiB, 10));
    EXPECT_ERROR(read_content(*file, kMiB, kMiB), CorruptError, "x.pt.zst: at ");
    EXPECT_EQ(read_content(*file, 0, 10), frames.content.substr(0, 10));
  }
}

// A frame by RFC 8878: `descriptor` and what follows it, and a block of "hello".
std::string hello(const std::string& header) {
  return "\x28\xB5\x2F\xFD" + header + std::string("\x29\0\0", 3) + "hello";
}

TEST(ZstdFile, ReadsWindowsOfUpTo128MiB) {
  EXPECT_EQ(decompress(hello(std::string("\0\x88", 2))), "hello");
  EXPECT_EQ(decompress(hello(std::string("\x80\x88\5\0\0\0", 6))), "hello");
  const std::string wide = hello(std::string("\0\x89", 2));
  for (const std::string& bytes : {wide, hello(std::string("\0\x90", 2)),
                                   hello(std::string("\0\xF8", 2)), zstd("first") + wide}) {
    EXPECT_ERROR(decompress(bytes), UnsupportedError, "window of more than 128 MiB");
  }
}

TEST(ZstdFile, RefusesDictionaries) {
  EXPECT_ERROR(decompress(hello(std::string("\1\x58\7", 3))), UnsupportedError, "dictionary");
  EXPECT_ERROR(decompress(hello(std::string("\x81\x58\7\5\0\0\0", 7))), UnsupportedError,
               "dictionary");
}

// A reader that trusts such a header allocates all of it.
TEST(ZstdFile, RefusesAHeaderThatClaimsMoreThanItsBlocksCanHold) {
  EXPECT_EQ(decompress(hello(std::string("\xC0\x58\5\0\0\0\0\0\0\0", 10))), "hello");
  for (const char* size : {"\6\0\0\0\0\0\0\0", "\0\0\0\0\1\0\0\0", "\0\0\0\0\0\0\0\x10"}) {
    const std::string bytes = hello("\xC0\x58" + std::string(size, 8));
    EXPECT_ERROR(decompress(bytes), CorruptError, "x.pt.zst: at ");
    if (size[0] == 0) {
      EXPECT_ERROR(Opened{bytes}, CorruptError, "more than its blocks can hold");
    }
  }
  // Sizes whose sum is more than there are numbers.
  const std::string most = hello(std::string("\xC0\x58\0\0\0\0\0\0\0\x80", 10));
  EXPECT_ERROR(Opened{most + most}, CorruptError, "more than its blocks can hold");
}

std::string with_table(const Frames& frames, const std::vector<TableEntry>& table) {
  return frames.stored + seek_table(table);
}

// Its content would be gone without a word: frames that hold nothing are never decoded.
TEST(ZstdFile, RefusesAFrameThatIsCalledEmptyAndIsNot) {
  EXPECT_EQ(decompress(hello("\x20\5")), "hello");
  const std::string empty = hello(std::string("\x20\0", 2));
  EXPECT_ERROR(Opened{empty + zstd("more")}, CorruptError, "is called empty and is not");
  EXPECT_ERROR(Opened{zstd("more") + empty}, CorruptError, "is called empty and is not");
}

TEST(ZstdFile, RefusesATableThatIsNotOne) {
  const Frames frames = frames_of({1000, 2000});
  const std::string good = with_table(frames, frames.table);
  const auto with = [&](size_t from_end, uint32_t value, size_t size) {
    std::string bytes = good;
    std::memcpy(bytes.data() + bytes.size() - from_end, &value, size);
    return bytes;
  };
  ASSERT_EQ(decompress(good), frames.content);
  EXPECT_ERROR(decompress(with(9, 1, 4)), CorruptError, "not a seek table");
  EXPECT_ERROR(decompress(with(9, 3, 4)), CorruptError, "not a seek table");
  EXPECT_ERROR(decompress(with(9, ~uint32_t{0}, 4)), CorruptError, "not a seek table");
  EXPECT_ERROR(decompress(with(5, 0x80, 1)), CorruptError, "not a seek table");  // checksums
  for (const uint32_t reserved : {4u, 8u, 16u, 32u, 64u}) {
    EXPECT_ERROR(decompress(with(5, reserved, 1)), CorruptError, "not a seek table");
  }
  EXPECT_ERROR(decompress(with(33, 0x184D2A5D, 4)), CorruptError, "not a seek table");
  EXPECT_ERROR(decompress(with(29, 26, 4)), CorruptError, "not a seek table");
}

TEST(ZstdFile, RefusesATableThatLies) {
  for (const FrameOptions& options : kVariants) {
    const Frames frames = frames_of({1000, 2000, 3000}, options);
    const auto [a, b, c] = std::tie(frames.table[0], frames.table[1], frames.table[2]);
    const std::vector<std::vector<TableEntry>> lies{
        {a, b},
        {a, b, c, c},
        {a, b, {c.stored, 3001}},
        {a, b, {c.stored, 2999}},
        {{a.stored, 1001}, {b.stored, 1999}, c},
        {{a.stored, 999}, {b.stored, 2001}, c},
        {{a.stored - 1, 1000}, {b.stored + 1, 2000}, c},
        {{a.stored + 1, 1000}, {b.stored - 1, 2000}, c},
        {{a.stored, 0}, {b.stored, 3000}, c},
        {{a.stored, 3000}, {b.stored, 0}, c},
        {b, a, c},
        {{a.stored, 500}, {0, 500}, b, c},
        {{a.stored + b.stored + c.stored, 6001}},
        {{a.stored, ~uint32_t{0}}, b, c},
        {a, b, {c.stored, 0}},
        {{a.stored, 0}, b, c},
        {a, {b.stored, 0}, c},
    };
    for (size_t i = 0; i < lies.size(); ++i) {
      const std::string bytes = with_table(frames, lies[i]);
      EXPECT_EQ(test::error_kind([&] { decompress(bytes); }), ErrorKind::corrupt) << i;
    }
    // From the back, one frame after the other: each is entered where the table says.
    for (size_t i = 0; i < lies.size(); ++i) {
      const std::string bytes = with_table(frames, lies[i]);
      EXPECT_EQ(test::error_kind([&] {
                  Opened file(bytes);
                  for (uint64_t at = file->size(); at > 0;) {
                    const uint64_t size = std::min<uint64_t>(at, 100);
                    at -= size;
                    read_content(*file, at, size);
                  }
                }),
                ErrorKind::corrupt)
          << i;
    }
  }
}

TEST(ZstdFile, ReadsFramesThatATableTrulyCallsEmpty) {
  for (const FrameOptions& options : kVariants) {
    Frames frames = frames_of({0, 1000, 0, 0, 50, 0}, options);
    const std::string note =
        skippable("a note of more than sixty-four bytes" + std::string(70, '.'));
    frames.stored += note;
    frames.table.push_back({static_cast<uint32_t>(note.size()), 0});
    frames.table.push_back({0, 0});
    EXPECT_EQ(decompress(with_table(frames, frames.table)), frames.content);
    // A skippable frame that says it is one of the frames behind it.
    frames = frames_of({10}, options);
    std::string hidden = skippable("");
    hidden += zstd("hidden", options);
    frames.stored += hidden;
    frames.table.push_back({static_cast<uint32_t>(hidden.size()), 0});
    EXPECT_ERROR(decompress(with_table(frames, frames.table)), CorruptError,
                 "is called empty and is not");
  }
}

// Its checksum would be left over.
TEST(ZstdFile, RefusesAFrameThatEndsBeforeTheNext) {
  for (const bool seekable : {false, true}) {
    Frames frames = frames_of({kMiB, kMiB}, {true, true});
    frames.stored[4] &= ~4;  // in the header: there is a checksum
    if (seekable) frames.stored += seek_table(frames.table);
    EXPECT_EQ(test::error_kind([&] {
                Opened file(frames.stored);
                read_content(*file, kMiB, kMiB);
                read_content(*file, 0, kMiB);
              }),
              ErrorKind::corrupt);
  }
}

// The table may shift content of a long frame from one block to the next. Reads from the second
// block on would then be shifted.
TEST(ZstdFile, RefusesATableThatMovesContent) {
  const Frames frames = frames_of({2 * kMiB, 2 * kMiB, 2 * kMiB}, {false, false});
  std::vector<TableEntry> table = frames.table;
  table[0].content -= 10;
  table[1].content += 10;
  Opened file(with_table(frames, table));
  const uint64_t begin = 2 * kMiB + 5;
  EXPECT_EQ(test::error_kind([&] { read_content(*file, begin, 4 * kMiB - 5); }),
            ErrorKind::corrupt);
  EXPECT_EQ(test::error_kind([&] { read_content(*file, 0, 2 * kMiB); }), ErrorKind::corrupt);
}

TEST(ZstdFile, StaysUsableAfterAnError) {
  Frames frames = frames_of({kMiB, kMiB, kMiB}, {true, true});
  frames.stored[frames.table[0].stored + frames.table[1].stored / 2] ^= 8;
  Opened file(frames.stored);
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(test::error_kind([&] { read_content(*file, kMiB, kMiB); }), ErrorKind::corrupt);
    EXPECT_TRUE(read_content(*file, 0, kMiB) == frames.contents[0]);
    EXPECT_TRUE(read_content(*file, 2 * kMiB, kMiB) == frames.contents[2]);
  }
}

TEST(ZstdFile, OutOfMemoryIsNotCorruption) {
  EXPECT_THROW(refuse_zstd({}, static_cast<size_t>(-ZSTD_error_memory_allocation)), std::bad_alloc);
}

}  // namespace
}  // namespace dsckpt
