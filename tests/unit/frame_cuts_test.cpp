#include "exec/frame_cuts.h"

#include <gtest/gtest.h>

#include <random>
#include <string>
#include <vector>

#include "support/plan_tools.h"

namespace dsckpt {
namespace {

using enum DType;

constexpr PlaneLayout kBytes{1, false};
constexpr PlaneLayout kFloats{4, true};
constexpr PlaneLayout kBrains{2, true};

// An output of pieces of these types and sizes, one after the other.
struct Piece {
  DType dtype;
  uint64_t size;
};
CopyPlan plan_of(const std::vector<Piece>& pieces, const std::string& before = {}) {
  PlanBuilder plan;
  uint64_t size = before.size();
  for (const Piece& piece : pieces) size += piece.size;
  // Others before and behind, which must not matter.
  plan.put_literal(plan.add_output("0", 3), 0, "012");
  const OutputId out = plan.add_output("1", size);
  plan.put_literal(plan.add_output("2", 1), 0, "3");
  if (!before.empty()) plan.put_literal(out, 0, before);
  uint64_t at = before.size();
  for (const auto& [dtype, bytes] : pieces) {
    if (bytes > 0) {
      plan.put(out, at, TensorSource::zeros(dtype, {static_cast<int64_t>(bytes / size_of(dtype))}));
    }
    at += bytes;
  }
  return plan.finish();
}

std::vector<FrameCut> cuts_of(const std::vector<Piece>& pieces, const std::string& before = {},
                              const std::vector<uint64_t>& patches = {}) {
  return cut_into_frames(plan_of(pieces, before), 1, patches);
}

void expect_tiles(const std::vector<FrameCut>& cuts, uint64_t size) {
  uint64_t at = 0;
  for (const FrameCut& cut : cuts) {
    ASSERT_EQ(cut.begin, at);
    ASSERT_GT(cut.size, 0u);
    ASSERT_LE(cut.size, kFrameBytes + 7);
    ASSERT_TRUE(cut.layout.is_valid());
    at = cut.end();
  }
  ASSERT_EQ(at, size);
}

TEST(FrameCuts, AreTheTypesOfTheTensors) {
  const auto cuts = cuts_of({{float32, 8000}, {bfloat16, 6000}, {int8, 5000}}, "header..");
  expect_tiles(cuts, 19008);
  ASSERT_EQ(cuts.size(), 4u);
  EXPECT_EQ(cuts[0].layout, kBytes);
  EXPECT_EQ(cuts[0].end(), 8u);
  EXPECT_EQ(cuts[1].layout, kFloats);
  EXPECT_EQ(cuts[1].end(), 8008u);
  EXPECT_EQ(cuts[2].layout, kBrains);
  EXPECT_EQ(cuts[2].end(), 14008u);
  EXPECT_EQ(cuts[3].layout, kBytes);
}

TEST(FrameCuts, JoinNeighboursOfOneTypeAndSmallOnesOfAny) {
  EXPECT_EQ(cuts_of({{float32, 4}, {float32, 40000}, {float32, 8}}).size(), 1u);
  const auto small = cuts_of({{float32, 4092}, {bfloat16, 4094}, {int64, 8}, {float32, 4096}});
  ASSERT_EQ(small.size(), 2u);
  EXPECT_EQ(small[0].size, 4092u + 4094 + 8);
  EXPECT_EQ(small[0].layout, kBytes);
  EXPECT_EQ(small[1].layout, kFloats);
}

TEST(FrameCuts, EndAtMultiplesOfAMebibyteOfTheContent) {
  const auto cuts = cuts_of({{float32, 3 << 20}}, std::string(1000, 'h'));
  expect_tiles(cuts, 1000 + (3 << 20));
  ASSERT_EQ(cuts.size(), 5u);
  for (size_t i = 1; i <= 3; ++i) EXPECT_EQ(cuts[i].end(), i << 20);
}

TEST(FrameCuts, EndBetweenElements) {
  for (const size_t before : {1u, 2u, 3u, 5u, 4097u, (1u << 20u) - 1u, (1u << 20u) - 3u}) {
    for (const DType dtype : {float32, int64, bfloat16}) {
      const auto cuts = cuts_of({{dtype, 3 << 20}}, std::string(before, 'h'));
      expect_tiles(cuts, before + (3 << 20));
      for (const FrameCut& cut : cuts) {
        if (cut.layout == kBytes) continue;
        EXPECT_EQ(cut.size % size_of(dtype), 0u);
        EXPECT_EQ((cut.begin - before) % size_of(dtype), 0u);
      }
    }
  }
}

TEST(FrameCuts, TileOutputsOfAnyPieces) {
  std::mt19937_64 random(1);
  for (int round = 0; round < 300; ++round) {
    std::vector<Piece> pieces;
    uint64_t size = 0;
    for (uint64_t i = random() % 12; i > 0; --i) {
      const auto dtype = static_cast<DType>(random() % kDTypeCount);
      const uint64_t count = random() % (1 << (random() % 19));
      pieces.push_back({dtype, count * size_of(dtype)});
      size += pieces.back().size;
    }
    const std::string before(random() % 9000, 'h');
    expect_tiles(cuts_of(pieces, before), size + before.size());
  }
}

TEST(FrameCuts, OfNothingAreNone) {
  EXPECT_TRUE(cuts_of({}).empty());
}

TEST(FrameCuts, ArePatchedWhereAnyByteOfADigestLies) {
  const auto patched = [](const std::vector<uint64_t>& patches) {
    std::string which;
    for (const FrameCut& cut : cuts_of({{float32, 8000}, {bfloat16, 8000}}, "12345678", patches)) {
      which += cut.patched ? '1' : '0';
    }
    return which;
  };
  EXPECT_EQ(patched({}), "000");
  EXPECT_EQ(patched({0}), "100");
  EXPECT_EQ(patched({4}), "100");
  EXPECT_EQ(patched({5}), "110");
  EXPECT_EQ(patched({8}), "010");
  EXPECT_EQ(patched({8005}), "011");
  EXPECT_EQ(patched({16004}), "001");
  EXPECT_EQ(patched({0, 16004}), "101");
}

TEST(IsPackable, ForFilesOfTensors) {
  for (const char* name :
       {"a.pt", "x/pytorch_model.bin", "m.safetensors", "a.pth", "0.tensor.swp"}) {
    EXPECT_TRUE(is_packable(name)) << name;
  }
  for (const char* name :
       {"config.json", "latest", "zero_to_fp32.py", "model.safetensors.index.json", "a.pt.dspack",
        "a.pt.zst", "pt", "", "a.PT"}) {
    EXPECT_FALSE(is_packable(name)) << name;
  }
}

}  // namespace
}  // namespace dsckpt
