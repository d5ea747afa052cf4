#include <gtest/gtest.h>

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "codec/frame.h"
#include "exec/packed_output.h"
#include "exec/staged_output.h"
#include "io/packed_file.h"
#include "support/defects.h"
#include "support/packed_tools.h"
#include "support/plan_runner.h"
#include "support/temp_file.h"

namespace dsckpt {
namespace {

using test::Content;
using test::make_content;

constexpr const char* kName = "layer_0.pt.dspack";

std::string read_packed(const std::string& bytes) {
  const test::StoredBytes stored(bytes, kName);
  PackedFile file(stored);
  return test::read_content(file);
}

// As the writer makes it: frames of several types, compressed and not, two of them patched.
struct Packed {
  std::string content;
  std::string bytes;

  explicit Packed(bool with_sha256) {
    const test::TempFolder folder;
    InputFiles inputs;
    const FileId floats = inputs.add(folder.write("f", make_content(Content::zeros, 4096)));
    const FileId random = inputs.add(folder.write("r", make_content(Content::random, 200)));
    PlanBuilder builder;
    const OutputId out = builder.add_output("a.pt", 40 + 4096 + 200 + 5000 + 8);
    builder.put_literal(out, 0, std::string(40, '\0'));
    builder.put(out, 40, TensorSource::stored({floats, 0, 4096}, DType::float32, {1024}));
    builder.put(out, 4136, TensorSource::stored({random, 0, 200}, DType::uint8, {200}));
    builder.put(out, 4336, TensorSource::zeros(DType::bfloat16, {2500}));
    builder.put_literal(out, 9336, std::string(8, '\0'));
    builder.add_digest({out, 40, 4136, {4, 9340}});
    const CopyPlan plan = builder.finish();
    content = test::run_plan(plan, inputs).at(0);

    std::vector<std::optional<Sha256Digest>> sha256(1);
    if (with_sha256) sha256[0].emplace().fill(std::byte{0x5A});
    {
      StagedOutput staged(plan, folder.path(), {.packed = true});
      staged.prepare();
      PackedOutput output(plan, staged, kDefaultPackLevel, sha256);
      Progress progress;
      execute(plan, inputs, output, progress);
      staged.commit();
    }
    bytes = test::read_all(folder.path() / "a.pt.dspack");
  }
};

void expect_refused(const std::string& damaged, const std::string& what) {
  try {
    const std::string content = read_packed(damaged);
    ADD_FAILURE() << what << " gives " << content.size() << " bytes";
  } catch (const Error& error) {
    EXPECT_TRUE(error.kind() == ErrorKind::corrupt || error.kind() == ErrorKind::unsupported)
        << what << ": " << error.what();
    EXPECT_EQ(error.where().file, kName) << what;
    EXPECT_TRUE(error.where().offset) << what;
  }
}

TEST(CorruptPacked, IsWholeWhenItIsNotDamaged) {
  for (const bool with_sha256 : {false, true}) {
    const Packed packed(with_sha256);
    const test::StoredBytes stored(packed.bytes);
    PackedFile file(stored);
    EXPECT_EQ(test::read_content(file), packed.content);
    EXPECT_EQ(file.sha256().has_value(), with_sha256);
    EXPECT_GT((packed.bytes.size() - 88) / 32, 4u);  // several frames
    EXPECT_LT(packed.bytes.size(), 1500u);
  }
}

TEST(CorruptPacked, TruncatedAtEverySize) {
  for (const bool with_sha256 : {false, true}) {
    const Packed packed(with_sha256);
    test::for_each_truncation(packed.bytes, [&](const std::string& cut, size_t size) {
      expect_refused(cut, "cut off at " + std::to_string(size));
    });
  }
}

TEST(CorruptPacked, WithAnyBitFlipped) {
  for (const bool with_sha256 : {false, true}) {
    const Packed packed(with_sha256);
    test::for_each_bit_flip(packed.bytes, 0, packed.bytes.size(),
                            [&](const std::string& damaged, size_t at) {
                              expect_refused(damaged, "byte " + std::to_string(at));
                            });
  }
}

TEST(CorruptPacked, WithAnyByteMissingOrTwice) {
  const Packed packed(true);
  for (size_t at = 0; at <= packed.bytes.size(); ++at) {
    std::string longer = packed.bytes;
    longer.insert(at, 1, at < longer.size() ? longer[at] : 'x');
    expect_refused(longer, "one byte more at " + std::to_string(at));
    if (at == packed.bytes.size()) break;
    std::string shorter = packed.bytes;
    shorter.erase(at, 1);
    expect_refused(shorter, "one byte less at " + std::to_string(at));
  }
}

TEST(CorruptPacked, WithAnyRunOfZeros) {
  const Packed packed(true);
  for (size_t at = 0; at < packed.bytes.size(); at += 3) {
    for (const size_t size : {16u, 64u, 512u}) {
      std::string damaged = packed.bytes;
      const size_t end = std::min(at + size, damaged.size());
      std::fill(damaged.begin() + static_cast<ptrdiff_t>(at),
                damaged.begin() + static_cast<ptrdiff_t>(end), '\0');
      if (damaged == packed.bytes) continue;
      expect_refused(damaged, "zeros from " + std::to_string(at));
    }
  }
}

// Two files of the same shape.
TEST(CorruptPacked, WithTheIndexOfAnotherFile) {
  const std::string a = make_content(Content::random, 500, 1);
  const std::string b = make_content(Content::random, 500, 2);
  const std::string of_a = test::packed_bytes({{a, test::raw_frame({4, true}, a)}});
  const std::string of_b = test::packed_bytes({{b, test::raw_frame({4, true}, b)}});
  ASSERT_EQ(of_a.size(), of_b.size());
  const size_t index = of_a.size() - 32 - 72;
  expect_refused(of_a.substr(0, index) + of_b.substr(index), "another index");
}

// A forger of checksums can make any index; its members are checked all the same.
TEST(CorruptPacked, WithFramesThatHoldSomethingElse) {
  const std::string content = make_content(Content::text, 3000);
  const std::string frame = test::raw_frame({2, true}, content);
  const auto with = [&](std::string stored) {
    return test::packed_bytes({{content, std::move(stored)}});
  };
  EXPECT_EQ(read_packed(with(frame)), content);
  test::for_each_bit_flip(frame, 0, frame.size(), [&](const std::string& damaged, size_t at) {
    expect_refused(with(damaged), "frame with a bit flipped at " + std::to_string(at));
  });
  test::for_each_truncation(frame, [&](const std::string& cut, size_t size) {
    if (size % 7 == 0 || size < 20) expect_refused(with(cut), "frame of " + std::to_string(size));
  });
  expect_refused(with(frame + "x"), "longer frame");
}

}  // namespace
}  // namespace dsckpt
