#include "codec/frame.h"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <new>
#include <random>
#include <string>
#include <vector>

#include "dsckpt/error.h"
#include "support/defects.h"
#include "support/expect_error.h"
#include "support/packed_tools.h"
#include "support/plan_tools.h"

namespace dsckpt {
namespace {

using test::Content;
using test::kContents;
using test::kLayouts;
using test::make_content;

using test::kMiB;

std::string encode(FrameEncoder& encoder, std::string_view content, PlaneLayout layout) {
  return std::string(as_text(encoder.encode(as_byte_span(content), layout)));
}
std::string encode(std::string_view content, PlaneLayout layout, int level = kDefaultPackLevel) {
  FrameEncoder encoder(level);
  return encode(encoder, content, layout);
}

// In memory of just their sizes, so that a sanitizer sees what leaves them.
std::string decode(std::string_view frame, size_t size) {
  static FrameDecoder decoder;
  const std::vector<std::byte> exact(as_byte_span(frame).begin(), as_byte_span(frame).end());
  std::vector<std::byte> content(size);
  decoder.decode(exact, content);
  return std::string(as_text(content));
}

void expect_round_trip(FrameEncoder& encoder, Content kind, size_t size, PlaneLayout layout) {
  const std::string content = make_content(kind, size, size);
  const std::string frame = encode(encoder, content, layout);
  const auto what = [&] {
    return "content " + std::to_string(static_cast<int>(kind)) + ", " + std::to_string(size) +
           " bytes, width " + std::to_string(layout.width) + (layout.rotated ? " rotated" : "");
  };
  ASSERT_LE(frame.size(), size + kMostFrameOverhead) << what();
  ASSERT_TRUE(decode(frame, size) == content) << what();
}

TEST(Frame, BecomesItsContentAgain) {
  FrameEncoder encoder(kDefaultPackLevel);
  for (const Content kind : kContents) {
    for (const PlaneLayout layout : kLayouts) {
      for (const size_t size :
           {1u,    2u,     3u,     4u,     5u,      7u,        8u,
            9u,    15u,    17u,    255u,   1001u,   4095u,     4096u,
            4097u, 16383u, 16385u, 65537u, 131077u, 1u << 20u, (1u << 20u) + 3u}) {
        expect_round_trip(encoder, kind, size, layout);
      }
    }
  }
}

TEST(Frame, OfTheLargestSizeBecomesItsContentAgain) {
  FrameEncoder encoder(kDefaultPackLevel);
  expect_round_trip(encoder, Content::zeros, kLargestFrame, {2, false});
  expect_round_trip(encoder, Content::random, kLargestFrame, {8, false});
  expect_round_trip(encoder, Content::normal_floats, kLargestFrame, {4, true});
  expect_round_trip(encoder, Content::text, kLargestFrame - 1, {1, false});
  expect_round_trip(encoder, Content::sparse, kLargestFrame, {4, false});
}

TEST(Frame, BecomesItsContentAgainAtEveryLevel) {
  for (int level = kLowestPackLevel; level <= kHighestPackLevel; level += 3) {
    FrameEncoder encoder(level);
    for (const Content kind : kContents) expect_round_trip(encoder, kind, 70001, {2, true});
  }
}

TEST(Frame, IsWhatTheFormatSays) {
  for (const Content kind : kContents) {
    for (const PlaneLayout layout : kLayouts) {
      for (const size_t size : {1u, 13u, 4099u, 200003u}) {
        const std::string content = make_content(kind, size, 7);
        const std::string frame = encode(content, layout);
        ASSERT_EQ(static_cast<uint8_t>(frame[0]), layout.width | (layout.rotated ? 0x80 : 0));
        ASSERT_TRUE(test::content_by_definition(frame, size) == content)
            << static_cast<int>(kind) << " " << int{layout.width} << " " << size;
        ASSERT_TRUE(decode(test::raw_frame(layout, content), size) == content);
      }
    }
  }
}

TEST(Frame, DoesNotDependOnWhatItsEncoderDidBefore) {
  FrameEncoder used(kDefaultPackLevel);
  for (int round = 0; round < 2; ++round) {
    for (const Content kind : kContents) {
      for (const PlaneLayout layout : kLayouts) {
        for (const size_t size : {5UL, 5000UL, 300001UL, kMiB}) {
          const std::string content = make_content(kind, size, 3);
          ASSERT_TRUE(encode(used, content, layout) == encode(content, layout))
              << static_cast<int>(kind) << " " << int{layout.width} << " " << size;
        }
      }
    }
  }
}

double ratio(Content kind, PlaneLayout layout) {
  const std::string content = make_content(kind, kMiB);
  return static_cast<double>(encode(content, layout).size()) / static_cast<double>(content.size());
}

// The bounds are those of the contents: what they have of information, and a little more.
TEST(Frame, IsAsSmallAsItsContentAllows) {
  EXPECT_LT(ratio(Content::zeros, {4, true}), 0.001);
  EXPECT_LT(ratio(Content::sparse, {1, false}), 0.04);
  EXPECT_LT(ratio(Content::text, {1, false}), 0.5);
  // Exponents have less than 3 bits, mantissas and signs 24.
  EXPECT_LT(ratio(Content::normal_floats, {4, true}), 27.0 / 32);
  EXPECT_GT(ratio(Content::normal_floats, {4, true}), 24.0 / 32);
  const std::string random = make_content(Content::random, kMiB);
  EXPECT_EQ(encode(random, {8, false}).size(), kMiB + kMostFrameOverhead);
}

TEST(FrameDecoder, RefusesATruncationAtEverySize) {
  for (const Content kind : {Content::random, Content::text, Content::zeros}) {
    for (const PlaneLayout layout : kLayouts) {
      const std::string frame = encode(make_content(kind, 1003), layout);
      test::for_each_truncation(frame, [&](const std::string& cut, size_t size) {
        ASSERT_EQ(test::error_kind([&] { decode(cut, 1003); }), ErrorKind::corrupt)
            << size << " of " << frame.size();
      });
    }
  }
}

TEST(FrameDecoder, RefusesBytesBehindThePlanes) {
  for (const PlaneLayout layout : kLayouts) {
    const std::string frame = encode(make_content(Content::normal_floats, 4099), layout);
    EXPECT_ERROR(decode(frame + "x", 4099), CorruptError, "bytes behind the planes");
  }
}

TEST(FrameDecoder, RefusesAFrameOfAnotherSize) {
  for (const Content kind : {Content::random, Content::zeros}) {
    for (const PlaneLayout layout : kLayouts) {
      const std::string frame = encode(make_content(kind, 1003), layout);
      for (size_t size = 0; size < 2100; ++size) {
        if (size == 1003) continue;
        ASSERT_EQ(test::error_kind([&] { decode(frame, size); }), ErrorKind::corrupt) << size;
      }
    }
  }
}

TEST(FrameDecoder, RefusesUnknownLayoutsAndMethods) {
  const std::string frame = test::raw_frame({2, true}, "12345678");
  for (int first = 0; first < 256; ++first) {
    std::string other = frame;
    other[0] = static_cast<char>(first);
    const PlaneLayout layout{static_cast<uint8_t>(first & 0x7F), first >= 128};
    if (layout.is_valid()) continue;
    EXPECT_ERROR(decode(other, 8), CorruptError, "at 0: not a layout of planes");
  }
  for (int method = 2; method < 256; ++method) {
    std::string other = frame;
    other[6] = static_cast<char>(method);
    EXPECT_ERROR(decode(other, 8), CorruptError, "at 15: not a plane of 4 bytes");
  }
}

// A zstd frame that would become more than the plane, or less.
TEST(FrameDecoder, RefusesAZstdFrameOfAnotherSize) {
  for (const size_t size : {0u, 99u, 101u, 1u << 20u}) {
    const std::string plane(size, 'p');
    std::string stored(ZSTD_compressBound(size), '\0');
    stored.resize(ZSTD_compress(stored.data(), stored.size(), plane.data(), size, 1));
    std::string frame = "\1\1";
    append_le(frame, static_cast<uint32_t>(stored.size()));
    EXPECT_EQ(test::error_kind([&] { decode(frame + stored, 100); }), ErrorKind::corrupt) << size;
    if (size > 0) {
      EXPECT_EQ(decode(frame + stored, size), plane);
    }
  }
}

// By itself a frame may become something else then, but nothing else happens.
TEST(FrameDecoder, SurvivesEveryFlippedBit) {
  for (const Content kind : {Content::random, Content::text, Content::normal_floats}) {
    for (const PlaneLayout layout : kLayouts) {
      const std::string frame = encode(make_content(kind, 803), layout);
      size_t refused = 0;
      test::for_each_bit_flip(frame, 0, frame.size(), [&](const std::string& damaged, size_t at) {
        const auto kind_of_error = test::error_kind([&] { decode(damaged, 803); });
        if (!kind_of_error) return;
        ++refused;
        ASSERT_EQ(kind_of_error, ErrorKind::corrupt) << at;
      });
      EXPECT_GT(refused, 8 * 5 * layout.width / 2u);
    }
  }
}

#if defined(__has_feature)
constexpr bool kIsSanitized = __has_feature(address_sanitizer);
#else
constexpr bool kIsSanitized = false;
#endif

// Ends the process: 0 if that was thrown.
[[noreturn]] void encode_without_memory() {
  const PlaneLayout layout{1, false};
  std::string even(kMiB, '\0');
  std::minstd_rand random(1);
  std::generate(even.begin(), even.end(), [&] { return static_cast<char>(random() >> 8U); });
  const std::string text(kMiB, 'a');
  FrameEncoder encoder(kDefaultPackLevel);
  encoder.encode(as_byte_span(even), layout);  // its own buffers have their size then
  const rlimit none{0, 0};
  ::setrlimit(RLIMIT_DATA, &none);
  try {
    encoder.encode(as_byte_span(text), layout);
  } catch (const std::bad_alloc&) {
    ::_exit(0);
  }
  ::_exit(1);
}

// Not a plane that does not become smaller.
TEST(Frame, OutOfMemoryIsAnError) {
  if (kIsSanitized) GTEST_SKIP() << "the sanitizer needs memory, too";
  GTEST_FLAG_SET(death_test_style,
                 "threadsafe");  // a new process: this one keeps memory of other tests
  EXPECT_EXIT(encode_without_memory(), testing::ExitedWithCode(0), "");
}

}  // namespace
}  // namespace dsckpt
