#include "exec/leader.h"

#include <gtest/gtest.h>

#include <atomic>
#include <thread>
#include <vector>

#include "base/kernels.h"
#include "dsckpt/error.h"
#include "exec/rank_words.h"
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
class LeaderTest : public test::RandomInputsTest {
 protected:
  LeaderTest() : RandomInputsTest(24 * kMiB) {
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

  // Returns what the others returned.
  std::vector<int> run(int ranks, const std::function<void(Group&)>& lead) {
    return test::run_ranks(ranks, other_progress_, {}, lead);
  }

  RunStats write(Group& group, const std::filesystem::path& target) {
    StagedOutput staged(plan_, target, {.shared = true});
    staged.prepare();
    Progress progress;
    const RunStats stats =
        execute_in_group(group, plan_, inputs_, {.staged = staged}, progress, options_);
    EXPECT_EQ(progress.bytes_total, progress.bytes_total);
    staged.commit();
    return stats;
  }

  std::string expected_large() const {
    std::string bytes = contents_[1].substr(0, 20 * kMiB) + contents_[2].substr(0, 20 * kMiB);
    const uint32_t crc = crc32(0, as_byte_span(bytes));
    append_le<uint32_t>(bytes, crc);
    return bytes;
  }

  CopyPlan plan_;
  ExecOptions options_ = {};
  Progress other_progress_;
};

TEST_F(LeaderTest, WritesTheSameBytesWithAnyNumberOfRanks) {
  for (const int ranks : {2, 3, 7}) {
    const auto target = folder_.path() / ("out" + std::to_string(ranks));
    const auto statuses = run(ranks, [&](Group& group) {
      const RunStats stats = write(group, target);
      EXPECT_EQ(stats.records_checked, 3u);
      EXPECT_EQ(stats.bytes_written, plan_.bytes_written());
      EXPECT_EQ(stats.bytes_stored, plan_.bytes_written());
    });
    EXPECT_EQ(statuses, std::vector<int>(static_cast<size_t>(ranks) - 1, test::kEndStatus));
    EXPECT_TRUE(test::read_all(target / "large") == expected_large());
    EXPECT_TRUE(test::read_all(target / "small") == contents_[0].substr(0, 3000));
    EXPECT_EQ(test::read_all(target / "empty"), "");
    for (size_t i = 0; i < 5; ++i) {
      EXPECT_TRUE(test::read_all(target / ("file" + std::to_string(i))) ==
                  contents_[0].substr(10'000 * i, 500'000));
    }
  }
}

TEST_F(LeaderTest, SeveralRunsFollowEachOther) {
  run(3, [&](Group& group) {
    write(group, folder_.path() / "one");
    write(group, folder_.path() / "two");
  });
  EXPECT_TRUE(test::read_all(folder_.path() / "two" / "large") == expected_large());
}

// Whoever goes on with a run takes it that they are there.
TEST_F(LeaderTest, EmptyOutputsAreThereBeforeAnythingIsSaved) {
  run(2, [&](Group& group) {
    StagedOutput staged(plan_, folder_.path() / "out", {.shared = true});
    staged.prepare();
    int saves = 0;
    options_.save_every = {};
    options_.save_pause = 0;
    options_.save = [&](const RunState&) {
      EXPECT_TRUE(std::filesystem::exists(staged.staged_path(1)));
      ++saves;
    };
    Progress progress;
    execute_in_group(group, plan_, inputs_, {.staged = staged}, progress, options_);
    EXPECT_GT(saves, 0);
  });
}

TEST_F(LeaderTest, PacksWhatOneProcessPacks) {
  PlanBuilder builder;
  builder.add_output("empty.bin", 0);
  builder.add_output("empty.txt", 0);
  builder.put(builder.add_output("full.bin", 3 * kMiB), 0, test::flat(0, 0, float32, kMiB * 3 / 4));
  const CopyPlan plan = builder.finish();
  const auto alone = folder_.path() / "alone";
  {
    StagedOutput staged(plan, alone, {.packed = true});
    staged.prepare();
    PackedOutput packed(plan, staged, 1);
    Progress progress;
    execute(plan, inputs_, packed, progress);
    staged.commit();
  }
  const auto several = folder_.path() / "several";
  run(3, [&](Group& group) {
    StagedOutput staged(plan, several, {.shared = true, .packed = true});
    staged.prepare();
    Progress progress;
    const RunStats stats =
        execute_in_group(group, plan, inputs_, {.staged = staged, .pack = 1}, progress, {});
    staged.commit();
    uint64_t stored = 0;
    for (const char* name : {"empty.bin.dspack", "empty.txt", "full.bin.dspack"}) {
      const std::string bytes = test::read_all(several / name);
      EXPECT_TRUE(bytes == test::read_all(alone / name)) << name;
      stored += bytes.size();
    }
    EXPECT_EQ(stats.bytes_stored, stored);
  });
}

TEST_F(LeaderTest, ARecordThatIsDamagedIsRefusedThoughSeveralRanksReadIt) {
  options_.records[1].crc32 ^= 1;
  run(3, [&](Group& group) {
    EXPECT_ERROR(write(group, folder_.path() / "out"), CorruptError, "record1");
  });
  EXPECT_FALSE(std::filesystem::exists(folder_.path() / "out"));
}

TEST_F(LeaderTest, WhatFailsOnOneRankEndsAll) {
  // Rank 0 has it open still; the others find another file there.
  const auto path = inputs_[1].path();
  std::filesystem::rename(path, path.string() + ".old");
  folder_.write("input1", contents_[0] + "x");
  options_.limit_rate =
      20 * kMiB;  // so slow that rank 0 cannot do all of it before the others come
  run(3, [&](Group& group) {
    try {
      write(group, folder_.path() / "out");
      ADD_FAILURE() << "nothing was thrown";
    } catch (const IoError& error) {
      const std::string text = error.what();
      EXPECT_NE(text.find("rank "), std::string::npos) << text;
      EXPECT_NE(text.find("is another file here than on rank 0"), std::string::npos) << text;
    }
  });
  EXPECT_FALSE(std::filesystem::exists(folder_.path() / "out"));
}

TEST_F(LeaderTest, ARankThatIsStoppedStopsAll) {
  options_.limit_rate = 3 * kMiB;
  std::thread stopper([&] {
    std::this_thread::sleep_for(300ms);
    other_progress_.cancelled = true;
  });
  run(2, [&](Group& group) {
    EXPECT_ERROR(write(group, folder_.path() / "out"), InterruptedError, "rank 1 on n1");
  });
  stopper.join();
  EXPECT_FALSE(std::filesystem::exists(folder_.path() / "out"));
}

TEST(RankWords, CarryErrorsWhole) {
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
