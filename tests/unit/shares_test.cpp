#include "exec/shares.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <vector>

#include "support/plan_tools.h"

namespace dsckpt {
namespace {

using enum DType;
using test::kMiB;

CopyPlan zeros(const std::vector<uint64_t>& sizes) {
  PlanBuilder builder;
  for (size_t i = 0; i < sizes.size(); ++i) {
    const OutputId out = builder.add_output("file" + std::to_string(i), sizes[i]);
    if (sizes[i] > 0) {
      builder.put(out, 0, TensorSource::zeros(uint8, {static_cast<int64_t>(sizes[i])}));
    }
  }
  return builder.finish();
}

class SharesTest : public testing::Test {
 protected:
  // The portions of each rank. Every batch is in one.
  std::vector<std::vector<BatchRange>> portions_of(const CopyPlan& plan,
                                                   const ShareOptions& options,
                                                   std::vector<BatchRange> done = {}) {
    units_ = std::make_unique<Units>(plan, std::span<const RecordUse::ExtraRead>(), kMiB / 4);
    const Shares shares(*units_, done, options);
    std::vector<std::vector<BatchRange>> taken(static_cast<size_t>(options.ranks));
    std::vector<int> times(units_->batches(), 0);
    for (const BatchRange& range : done) {
      for (uint64_t batch = range.first; batch < range.last; ++batch) ++times[batch];
    }
    for (int rank = 0; rank < options.ranks; ++rank) {
      for (const Shares::Piece& piece : shares.of(rank)) {
        taken[static_cast<size_t>(rank)].push_back(piece.batches);
        for (uint64_t i = piece.batches.first; i < piece.batches.last; ++i) ++times.at(i);
      }
    }
    EXPECT_TRUE(std::all_of(times.begin(), times.end(), [](int n) { return n == 1; }));
    return taken;
  }

  uint64_t bytes(const std::vector<BatchRange>& ranges) const {
    uint64_t sum = 0;
    for (const BatchRange& range : ranges) sum += units_->bytes_of(range);
    return sum;
  }

  std::unique_ptr<Units> units_;
};

TEST_F(SharesTest, AreContiguousAndOfTheSameBytes) {
  const CopyPlan plan = zeros({100 * kMiB + 17, 3, 0, 60 * kMiB, 40 * kMiB + 5});
  const Units units(plan, std::span<const RecordUse::ExtraRead>(), kMiB / 4);
  for (const int ranks : {1, 2, 3, 4, 7}) {
    SCOPED_TRACE(ranks);
    const auto portions = portions_of(plan, {.ranks = ranks});
    const uint64_t share = plan.bytes_written() / static_cast<uint64_t>(ranks);
    uint64_t next = 0;
    for (const std::vector<BatchRange>& of_rank : portions) {
      // Within a cut of 1 MiB at either end.
      EXPECT_NEAR(static_cast<double>(bytes(of_rank)), static_cast<double>(share), 2.0 * kMiB);
      for (const BatchRange& batches : of_rank) {
        EXPECT_EQ(batches.first, next);
        next = batches.last;
      }
    }
    EXPECT_EQ(next, units.batches());
  }
}

TEST_F(SharesTest, AreCutAtMultiplesInFilesAndWhereElementsEnd) {
  // Elements of 4 bytes behind a header of 3: no unit begins at a multiple.
  PlanBuilder builder;
  const OutputId out = builder.add_output("file", 3 + 64 * kMiB);
  builder.put_literal(out, 0, "abc");
  builder.put(out, 3, TensorSource::zeros(float32, {16 * kMiB}));
  const CopyPlan plan = builder.finish();
  const auto taken = portions_of(plan, {.ranks = 4, .cut_bytes = kMiB});
  size_t portions = 0;
  for (const std::vector<BatchRange>& ranges : taken) {
    portions += ranges.size();
    for (const BatchRange& range : ranges) {
      const uint64_t begin = units_->batch(range.first).front().begin;
      EXPECT_LT((begin + 4) % kMiB, 5u) << begin;
    }
  }
  // A share of 16 MiB has four of 2 MiB, an eighth of the rest rounded up, and eight of 1 MiB.
  EXPECT_EQ(portions, 4 * 12u);
}

TEST_F(SharesTest, NeverCutOutputsThatMustBeWhole) {
  const CopyPlan plan = zeros({90 * kMiB, 5 * kMiB, 5 * kMiB, 5 * kMiB, 90 * kMiB});
  const auto taken = portions_of(plan, {.ranks = 3, .whole_outputs = true});
  for (const std::vector<BatchRange>& ranges : taken) {
    for (const BatchRange& range : ranges) {
      EXPECT_EQ(units_->batch(range.first).front().begin, 0u);
      const PlanUnit& last = units_->batch(range.last - 1).back();
      EXPECT_EQ(last.end, plan.outputs()[last.out].size);
    }
  }
}

TEST_F(SharesTest, LeaveOutWhatIsDone) {
  const CopyPlan plan = zeros({64 * kMiB});  // 256 batches
  const auto taken = portions_of(plan, {.ranks = 2}, {{0, 10}, {100, 228}});
  EXPECT_EQ(bytes(taken[0]) + bytes(taken[1]), (256 - 10 - 128) * kMiB / 4);
  // More ranks than there is to do.
  portions_of(plan, {.ranks = 7}, {{0, 255}});
  portions_of(plan, {.ranks = 7}, {{0, 256}});
}

TEST_F(SharesTest, EndInShortPortions) {
  const auto portions = portions_of(zeros({256 * kMiB}), {.ranks = 2});
  for (const std::vector<BatchRange>& of_rank : portions) {
    // An eighth of its share of 128 MiB is the first, and a 64th the last.
    EXPECT_EQ(of_rank.front().last - of_rank.front().first, 64u);
    EXPECT_EQ(of_rank.back().last - of_rank.back().first, 8u);
    EXPECT_TRUE(std::is_sorted(of_rank.rbegin(), of_rank.rend(), [](const auto& a, const auto& b) {
      return a.last - a.first < b.last - b.first;
    }));
  }
}

TEST_F(SharesTest, OfMuchTextAreTakenInMorePortions) {
  // Two files of 40 MiB each that are in the plan itself, and one that is not.
  PlanBuilder builder;
  const std::string text(40 * kMiB, 'x');
  for (const char* name : {"one", "two"}) {
    const OutputId out = builder.add_output(name, 2 * text.size());
    builder.put_literal(out, 0, text);
    builder.put(out, text.size(), TensorSource::zeros(uint8, {static_cast<int64_t>(text.size())}));
  }
  for (int i = 0; i < 40; ++i) {
    const OutputId out = builder.add_output("small" + std::to_string(i), kMiB);
    builder.put_literal(out, 0, text.substr(0, kMiB));
  }
  builder.put(builder.add_output("zeros", 640 * kMiB), 0,
              TensorSource::zeros(uint8, {640 * int64_t{kMiB}}));
  const CopyPlan plan = builder.finish();
  const Units units(plan, std::span<const RecordUse::ExtraRead>(), kMiB);
  uint64_t literals = 0;
  for (const Units::Literals& each : units.literals()) literals += each.bytes;
  EXPECT_EQ(literals, plan.literals().size());

  const Shares shares(units, {}, {.ranks = 1});
  size_t small = 0;
  for (const Shares::Piece& piece : shares.of(0)) {
    uint64_t bytes = 0;
    for (uint64_t batch = piece.batches.first; batch < piece.batches.last; ++batch) {
      const PlanUnit& unit = units.batch(batch).front();
      if (unit.out >= 2 && unit.out < 42) bytes += kMiB;
    }
    EXPECT_LE(bytes, Shares::kMostLiterals);
    small += bytes > 0 ? 1 : 0;
  }
  EXPECT_GE(small, 40 / 16 + 1u);
}

}  // namespace
}  // namespace dsckpt
