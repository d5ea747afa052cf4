#include "exec/rank_work.h"

#include <gtest/gtest.h>

#include <atomic>
#include <thread>
#include <vector>

#include "base/kernels.h"
#include "dsckpt/error.h"
#include "exec/journal.h"
#include "exec/portion.h"
#include "exec/staged_output.h"
#include "exec/step_files.h"
#include "support/expect_error.h"
#include "support/plan_tools.h"
#include "support/random_inputs.h"
#include "support/thread_ranks.h"

namespace dsckpt {
namespace {

using enum DType;
using namespace std::chrono_literals;
using test::kMiB;

// A run of several ranks, each a thread of this process.
class RankWorkTest : public test::RandomInputsTest {
 protected:
  RankWorkTest() : RandomInputsTest(24 * kMiB) {
    PlanBuilder builder;
    builder.put(builder.add_output("small", 3000), 0, test::flat(0, 0, uint8, 3000));
    builder.add_output("empty", 0);
    // All ranks write it, and a digest lies over several shares.
    const OutputId large = builder.add_output("large", 40 * kMiB + 4);
    builder.put(large, 0, test::flat(1, 0, uint8, 20 * kMiB));
    builder.put(large, 20 * kMiB, test::flat(2, 0, uint8, 20 * kMiB));
    builder.put_literal(large, 40 * kMiB, std::string_view("\0\0\0\0", 4));
    builder.add_digest({large, 0, 40 * kMiB, {40 * kMiB}});
    for (uint64_t i = 0; i < 5; ++i) {
      builder.put(builder.add_output("file" + std::to_string(i), 500'000), 0,
                  test::flat(0, 10'000 * i, uint8, 500'000));
    }
    plan_ = builder.finish();
    plan_.validate(test::planned(inputs_));
    options_.records = {record(0, 0, kMiB), record(1, 0, 20 * kMiB), record(2, 0, 24 * kMiB)};
  }

  void write(Meeting& meeting, const std::filesystem::path& target,
             const std::function<void(const Folder&)>& before = {}) {
    StagedOutput staged(plan_, target, {.shared = true});
    staged.prepare();
    staged.finish(1);
    const RecordChecks checks(plan_, options_.records, false);
    const Units units(plan_, checks.extra_reads(), options_.unit_bytes);
    const PortionCutter cutter(plan_, units, checks.use(), options_.unit_bytes);
    StepPlan plan{.by = {.program = test::kMeeting.program},
                  .job = {.place = staged.place(),
                          .options = {.limit_rate = limit_rate_},
                          .sync_results = false},
                  .unit_bytes = options_.unit_bytes};
    plan.job.add_inputs(inputs_);
    Progress progress;
    progress.bytes_total = units.bytes();
    PlanWriter writer(*staged.folder());
    writer.add(
        Shares(units, {}, {.ranks = meeting.size()}),
        [&](const BatchRange& batches) { return cutter.cut(batches).encode(); }, progress);
    writer.save(plan);
    if (before) before(*staged.folder());
    work_with_ranks(meeting, *staged.folder(), {}, 2, progress);
    EXPECT_EQ(progress.bytes_done, progress.bytes_total);
    Reached reached{.run = {.unit_bytes = options_.unit_bytes}};
    uint64_t bytes = 0;
    for (const RankStats& rank : add_results(*staged.folder(), reached)) bytes += rank.bytes_done;
    EXPECT_EQ(bytes, units.bytes());
    ExecOptions options = options_;
    options.from = &reached.run;
    const RunStats stats = execute(plan_, inputs_, staged, progress, options);
    EXPECT_EQ(stats.records_checked, 3u);
    staged.commit();
  }

  std::string expected_large() const {
    std::string bytes = contents_[1].substr(0, 20 * kMiB) + contents_[2].substr(0, 20 * kMiB);
    const uint32_t crc = crc32(0, as_byte_span(bytes));
    append_le<uint32_t>(bytes, crc);
    return bytes;
  }

  void expect_whole(const std::filesystem::path& target) const {
    EXPECT_TRUE(test::read_all(target / "large") == expected_large());
    EXPECT_TRUE(test::read_all(target / "small") == contents_[0].substr(0, 3000));
    EXPECT_EQ(test::read_all(target / "empty"), "");
    for (size_t i = 0; i < 5; ++i) {
      EXPECT_TRUE(test::read_all(target / ("file" + std::to_string(i))) ==
                  contents_[0].substr(10'000 * i, 500'000));
    }
  }

  CopyPlan plan_;
  ExecOptions options_ = {};
  uint64_t limit_rate_ = 0;
};

TEST_F(RankWorkTest, WritesTheSameBytesWithAnyNumberOfRanks) {
  for (const int ranks : {2, 5}) {
    const auto target = folder_.path() / ("out" + std::to_string(ranks));
    const auto statuses =
        test::run_ranks(ranks, {}, [&](Meeting& meeting) { write(meeting, target); });
    EXPECT_EQ(statuses, std::vector<int>(static_cast<size_t>(ranks) - 1, test::kEndStatus));
    expect_whole(target);
  }
}

TEST_F(RankWorkTest, SeveralRunsFollowEachOther) {
  test::run_ranks(3, {}, [&](Meeting& meeting) {
    write(meeting, folder_.path() / "one");
    write(meeting, folder_.path() / "two");
  });
  expect_whole(folder_.path() / "two");
}

TEST_F(RankWorkTest, ARecordThatIsDamagedIsRefusedThoughSeveralRanksReadIt) {
  options_.records[1].crc32 ^= 1;
  test::run_ranks(3, {}, [&](Meeting& meeting) {
    EXPECT_ERROR(write(meeting, folder_.path() / "out"), CorruptError, "record1");
  });
  EXPECT_FALSE(std::filesystem::exists(folder_.path() / "out"));
}

TEST_F(RankWorkTest, WhatFailsOnOneRankEndsAll) {
  // All open what is another file now.
  const auto path = inputs_[1].path();
  std::filesystem::rename(path, path.string() + ".old");
  folder_.write("input1", contents_[0] + "x");
  test::run_ranks(3, {}, [&](Meeting& meeting) {
    EXPECT_ERROR(write(meeting, folder_.path() / "out"), IoError,
                 "is not the same file here as on rank 0");
  });
  EXPECT_FALSE(std::filesystem::exists(folder_.path() / "out"));
}

TEST_F(RankWorkTest, TheOthersDoTheWorkOfARankThatLeaves) {
  limit_rate_ = 10 * kMiB;
  std::atomic<bool> interrupted = false;
  std::thread stopper([&] {
    std::this_thread::sleep_for(1s);
    interrupted = true;
  });
  const auto statuses = test::run_ranks(
      2, {}, [&](Meeting& meeting) { write(meeting, folder_.path() / "out"); }, interrupted);
  stopper.join();
  EXPECT_EQ(statuses, std::vector{-1});
  expect_whole(folder_.path() / "out");
}

TEST_F(RankWorkTest, RankZeroDoesWhatWasTakenByRanksThatAreAway) {
  test::run_ranks(2, {}, [&](Meeting& meeting) {
    write(meeting, folder_.path() / "out", [](const Folder& folder) {
      EXPECT_TRUE(take_portion(folder, 2, 7));
      EXPECT_FALSE(take_portion(folder, 2, 0));
      EXPECT_EQ(taker_of(folder, 2), 7);
      EXPECT_EQ(taker_of(folder, 3), std::nullopt);
    });
  });
  expect_whole(folder_.path() / "out");
}

TEST_F(RankWorkTest, RanksOfAnotherProgramAreRefused) {
  const test::TempFolder folder;
  const Environment environment = [path = folder.path().string()](const char* name) {
    return name == std::string("DSCKPT_GROUP_DIR") ? path.c_str() : nullptr;
  };
  Meeting meeting({"test", 0, 2, "1"}, {.program = "dsckpt 2"}, environment);
  std::atomic<bool> interrupted = false;
  Attendance other({"test", 1, 2, "1"}, test::kMeeting, environment, interrupted);
  Progress progress;
  EXPECT_ERROR(meeting.ask(Word::look, "", progress), UsageError, "runs dsckpt 1, and rank 0");
}

TEST(RankJob, CarryErrorsWhole) {
  const auto again = [](const std::exception& error) {
    throw_failure(encode_failure(error), "rank 1 on n1");
  };
  try {
    again(CorruptError({.file = "f", .member = "m", .tensor = "t", .offset = 9}, "bad")
              .with_hint("try this"));
    ADD_FAILURE();
  } catch (const CorruptError& error) {
    EXPECT_EQ(std::string(error.what()), "f: m: t: at 9: rank 1 on n1: bad");
    EXPECT_EQ(error.hint(), "try this");
  }
  try {
    again(IoError({.file = "f"}, "cannot write", ENOSPC));
    ADD_FAILURE();
  } catch (const IoError& error) {
    EXPECT_EQ(error.errno_value(), ENOSPC);
    EXPECT_EQ(std::string(error.what()), "f: rank 1 on n1: cannot write: No space left on device");
    EXPECT_FALSE(error.where().offset);
  }
  EXPECT_ERROR(again(std::bad_alloc()), IoError, "out of memory");
  EXPECT_ERROR(again(std::logic_error("oops")), std::runtime_error, "rank 1 on n1: oops");
}

}  // namespace
}  // namespace dsckpt
