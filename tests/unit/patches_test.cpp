// Places of digests are written once, with their value, whoever runs the plan. MemorySink throws
// for a byte that comes twice, so the bytes in it are all that was ever there.
#include "exec/patches.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <optional>
#include <string>
#include <vector>

#include "exec/executor.h"
#include "support/plan_runner.h"
#include "support/plan_tools.h"
#include "support/portion_runner.h"
#include "support/random_inputs.h"

namespace dsckpt {
namespace {

using test::flat;
using test::MemorySink;

constexpr uint64_t kUnit = 4096;

class PatchesTest : public test::RandomInputsTest {
 protected:
  PatchesTest() : RandomInputsTest(20 * test::kMiB) {}

  // An output of `size` bytes of an input. Those at `places` are to be the digest of
  // [begin, end).
  CopyPlan plan_of(uint64_t size, uint64_t begin, uint64_t end,
                   const std::vector<uint64_t>& places) {
    PlanBuilder builder;
    const OutputId out = builder.add_output("out", size);
    std::vector<uint64_t> cuts{0, begin, end, size};
    for (const uint64_t place : places) {
      cuts.push_back(place);
      cuts.push_back(place + kPatchBytes);
    }
    std::sort(cuts.begin(), cuts.end());
    for (size_t i = 0; i + 1 < cuts.size(); ++i) {
      builder.put(out, cuts[i], flat(0, cuts[i], DType::uint8, cuts[i + 1] - cuts[i]));
    }
    builder.add_digest({out, begin, end, places});
    CopyPlan plan = builder.finish();
    plan.validate(test::planned(inputs_));
    return plan;
  }

  // How many writes one thread makes of it.
  int writes_of(const CopyPlan& plan) {
    const std::vector<std::string> expected = test::run_plan(plan, inputs_);
    int writes = 0;
    for (const unsigned threads : {8u, 2u, 1u}) {
      MemorySink sink(plan);
      Progress progress;
      execute(plan, inputs_, sink, progress, {.threads = threads, .unit_bytes = kUnit});
      EXPECT_TRUE(sink.outputs() == expected) << threads << " threads";
      writes = sink.writes();
    }
    for (const int ranks : {1, 2, 5}) {
      EXPECT_TRUE(expected == test::run_in_portions(
                                  plan, inputs_, {.threads = 2, .unit_bytes = kUnit}, ranks, kUnit))
          << ranks << " ranks";
    }
    return writes;
  }
};

constexpr uint64_t kLarge = 17 * test::kMiB;  // more than a thread has for itself

TEST_F(PatchesTest, ADigestThatIsKnownIsWrittenWithItsUnit) {
  EXPECT_EQ(writes_of(plan_of(1000, 100, 500, {0, 96, 500, 996})), 1);
  // A file of one thread's: all that comes behind the range is known.
  EXPECT_EQ(writes_of(plan_of(3 * kUnit, 100, kUnit + 500, {2 * kUnit - 4, 3 * kUnit - 4})), 3);
  EXPECT_EQ(writes_of(plan_of(kLarge, 10 * kUnit, 11 * kUnit - 4, {11 * kUnit - 4})),
            static_cast<int>(kLarge / kUnit));
}

TEST_F(PatchesTest, OneThatIsNotIsLeftOut) {
  // In front of the range, before all of it is read: two pieces of the first unit, and the place.
  EXPECT_EQ(writes_of(plan_of(3 * kUnit, 100, kUnit + 500, {50})), 3 + 2);
  EXPECT_EQ(writes_of(plan_of(3 * kUnit, 100, kUnit + 500, {0})), 3 + 1);
  // A range of several threads'.
  EXPECT_EQ(writes_of(plan_of(kLarge, 100, kLarge - 100, {50, kLarge - 50})),
            static_cast<int>(kLarge / kUnit) + 4);
}

TEST_F(PatchesTest, APlaceMayLieAcrossTheEndsOfUnitsAndPortions) {
  for (const uint64_t into : {1U, 2U, 3U}) {
    const uint64_t place = 20 * kUnit - into;
    // Known to both, to the second only, to none.
    writes_of(plan_of(30 * kUnit, 0, 100, {place}));
    writes_of(plan_of(30 * kUnit, 20 * kUnit + 100, 20 * kUnit + 200, {place}));
    writes_of(plan_of(30 * kUnit, 25 * kUnit, 26 * kUnit, {place}));
    writes_of(plan_of(kLarge, 20 * kUnit + 100, 20 * kUnit + 200, {place}));
    writes_of(plan_of(kLarge, 5 * kUnit, 6 * kUnit, {place}));
    writes_of(plan_of(kLarge, 0, place, {place}));
  }
}

TEST_F(PatchesTest, TheDigestOfNothingIsKnownToAll) {
  EXPECT_EQ(writes_of(plan_of(kLarge, kUnit, kUnit, {0, 7 * kUnit - 2, kLarge - 4})),
            static_cast<int>(kLarge / kUnit));
}

// Stopped after every batch, and resumed.
TEST_F(PatchesTest, ARunThatGoesOnWritesWhatTheOneBeforeHasLeftOut) {
  struct Stop {};
  const CopyPlan plan = plan_of(kLarge, kUnit + 1, kLarge - 2 * kUnit, {kUnit - 3, kLarge - 9});
  const std::vector<std::string> expected = test::run_plan(plan, inputs_);
  MemorySink sink(plan);
  std::optional<RunState> reached;
  for (int runs = 0;; ++runs) {
    ASSERT_LT(runs, 1000);
    std::optional<RunState> stopped;
    int saves = 0;
    ExecOptions options{.threads = 1, .unit_bytes = 64 * kUnit};
    options.from = reached ? &*reached : nullptr;
    options.save_every = {};
    options.save_pause = 0;
    options.save = [&](const RunState& state) {
      if (++saves < 2) return;
      stopped = state;
      throw Stop();
    };
    try {
      Progress progress;
      execute(plan, inputs_, sink, progress, options);
      EXPECT_GT(runs, 10);
      break;
    } catch (const Stop&) {
      reached = stopped;
    }
  }
  EXPECT_TRUE(sink.all_finished());
  EXPECT_TRUE(sink.outputs() == expected);
}

}  // namespace
}  // namespace dsckpt
