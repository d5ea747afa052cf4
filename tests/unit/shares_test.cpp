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
  // What each rank takes if all take turns, and every batch is taken once.
  std::vector<std::vector<BatchRange>> take_all(const CopyPlan& plan, const ShareOptions& options,
                                                std::vector<BatchRange> done = {}) {
    units_ = std::make_unique<Units>(plan, std::span<const RecordUse::ExtraRead>(), kMiB / 4);
    Shares shares(*units_, done, options);
    std::vector<std::vector<BatchRange>> taken(static_cast<size_t>(options.ranks));
    std::vector<int> times(units_->batches(), 0);
    for (const BatchRange& range : done) {
      for (uint64_t batch = range.first; batch < range.last; ++batch) ++times[batch];
    }
    for (int rank = 0;; rank = (rank + 1) % options.ranks) {
      const auto batches = shares.take(rank);
      if (!batches) break;
      taken[static_cast<size_t>(rank)].push_back(*batches);
      for (uint64_t batch = batches->first; batch < batches->last; ++batch) ++times.at(batch);
    }
    EXPECT_EQ(shares.portions_left(), 0u);
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
    Shares shares(units, {}, {.ranks = ranks});
    const uint64_t share = plan.bytes_written() / static_cast<uint64_t>(ranks);
    uint64_t next = 0;
    for (int rank = 0; rank < ranks; ++rank) {
      // Within a cut of 1 MiB at either end.
      EXPECT_NEAR(static_cast<double>(shares.bytes_left(rank)), static_cast<double>(share),
                  2.0 * kMiB);
      while (shares.bytes_left(rank) > 0) {
        const BatchRange batches = shares.take(rank).value();
        EXPECT_EQ(batches.first, next);
        next = batches.last;
      }
    }
    EXPECT_EQ(next, units.batches());
    // Whoever comes next has nothing to do.
    EXPECT_FALSE(shares.take(0));
    take_all(plan, {.ranks = ranks});
  }
}

TEST_F(SharesTest, AreCutAtMultiplesInFilesAndWhereElementsEnd) {
  // Elements of 4 bytes behind a header of 3: no unit begins at a multiple.
  PlanBuilder builder;
  const OutputId out = builder.add_output("file", 3 + 64 * kMiB);
  builder.put_literal(out, 0, "abc");
  builder.put(out, 3, TensorSource::zeros(float32, {16 * kMiB}));
  const CopyPlan plan = builder.finish();
  const auto taken = take_all(plan, {.ranks = 4, .cut_bytes = kMiB});
  size_t portions = 0;
  for (const std::vector<BatchRange>& ranges : taken) {
    portions += ranges.size();
    for (const BatchRange& range : ranges) {
      const uint64_t begin = units_->batch(range.first).front().begin;
      EXPECT_LT((begin + 4) % kMiB, 5u) << begin;
    }
  }
  // Of a share of 16 MiB: four of 2 MiB, an eighth of what is left rounded up, and eight of 1 MiB.
  EXPECT_EQ(portions, 4 * 12u);
}

TEST_F(SharesTest, NeverCutOutputsThatMustBeWhole) {
  const CopyPlan plan = zeros({90 * kMiB, 5 * kMiB, 5 * kMiB, 5 * kMiB, 90 * kMiB});
  const auto taken = take_all(plan, {.ranks = 3, .whole_outputs = true});
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
  const auto taken = take_all(plan, {.ranks = 2}, {{0, 10}, {100, 228}});
  EXPECT_EQ(bytes(taken[0]) + bytes(taken[1]), (256 - 10 - 128) * kMiB / 4);
  // More ranks than there is to do.
  take_all(plan, {.ranks = 7}, {{0, 255}});
  take_all(plan, {.ranks = 7}, {{0, 256}});
}

TEST_F(SharesTest, OfASlowRankAreTakenByTheOthersFromTheEnd) {
  const CopyPlan plan = zeros({256 * kMiB});
  const Units units(plan, std::span<const RecordUse::ExtraRead>(), kMiB / 4);
  Shares shares(units, {}, {.ranks = 2});
  const auto slow = shares.take(0).value();
  EXPECT_EQ(slow.first, 0u);
  uint64_t last = units.batches();
  std::vector<BatchRange> helped;
  while (const auto batches = shares.take(1)) {
    if (batches->last <= units.batches() / 2) helped.push_back(*batches);
  }
  // An eighth of its share of 128 MiB. The others take all but that, the last first: they are a
  // 64th of it, and longer towards the front.
  EXPECT_EQ(slow.last, 64u);
  last = units.batches() / 2;
  ASSERT_FALSE(helped.empty());
  EXPECT_EQ(helped.front().last - helped.front().first, 8u);
  uint64_t size = 8;
  for (const BatchRange& range : helped) {
    EXPECT_EQ(range.last, last);
    EXPECT_GE(range.last - range.first, size);
    size = range.last - range.first;
    last = range.first;
  }
  EXPECT_EQ(last, slow.last);
  EXPECT_FALSE(shares.take(0));
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

  Shares shares(units, {}, {.ranks = 1});
  size_t small = 0;
  while (const auto batches = shares.take(0)) {
    uint64_t bytes = 0;
    for (uint64_t batch = batches->first; batch < batches->last; ++batch) {
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
