// What was meant to be written against what is there.
#include "exec/output_sums.h"

#include <gtest/gtest.h>

#include <fstream>
#include <string>

#include "exec/rate_limit.h"
#include "exec/staged_output.h"
#include "support/expect_error.h"
#include "support/plan_tools.h"
#include "support/temp_file.h"
#include "support/thread_ranks.h"

namespace dsckpt {
namespace {

namespace fs = std::filesystem;
using test::TempFolder;

constexpr uint64_t kRecord = OutputSums::kChunk + 12345;

// "large": 100 bytes, a record of more than a chunk, a tail of 100. The record's digest is patched
// in front of it, behind it, and across the border of two chunks. "small", and "empty".
class OutputSumsTest : public testing::Test {
 protected:
  OutputSumsTest() {
    const std::string bytes = test::random_bytes(kRecord, 7);
    const FileId in = inputs_.add(folder_.write("in", bytes));
    PlanBuilder builder;
    const OutputId large = builder.add_output("large", kSize);
    const uint64_t end = 100 + kRecord;
    builder.put_literal(large, 0, std::string(100, 'h'));
    builder.put(
        large, 100,
        TensorSource::stored({in, 0, kRecord}, DType::uint8, {static_cast<int64_t>(kRecord)}));
    builder.put_literal(large, end, std::string(100, 't'));
    builder.add_digest({large, 100, end, {4, OutputSums::kChunk - 2, end + 50}});
    builder.put_literal(builder.add_output("small", 5), 0, "small");
    builder.add_output("empty", 0);
    plan_ = builder.finish();
  }

  // Runs the plan, has `damage` done to what was written, and reads it back.
  uint64_t written_and_read_back(const std::function<void(const fs::path&)>& damage,
                                 unsigned threads = 3, int ranks = 1) {
    StagedOutput staged(plan_, folder_.path() / "out");
    staged.prepare();
    OutputSums sums(plan_, staged, [](OutputId) { return true; });
    Progress progress;
    ExecOptions options;
    options.threads = threads;
    execute(plan_, inputs_, sums, progress, options);
    staged.sync();
    damage(staged.staged_path(0).parent_path());
    EXPECT_EQ(sums.bytes(), kSize + 5);
    const uint64_t before = progress.bytes_done;
    const std::vector<MeantFile> meant =
        sums.meant([&](OutputId out) { return staged.staged_path(out); },
                   [&](OutputId out) { return plan_.outputs()[out].path; });
    uint64_t read = 0;
    if (ranks == 1) {
      read = read_back(meant, 0, {threads, progress});
    } else {
      Progress others;
      std::optional<Error> failure;
      test::run_ranks(ranks, others, {}, [&](Group& group) {
        try {
          read = read_back(meant, 0, {threads, progress, &group});
        } catch (const Error& error) {
          failure = error;
        }
      });
      if (failure) failure->raise();
    }
    EXPECT_EQ(progress.bytes_done, before + read);
    return read;
  }

  static constexpr uint64_t kSize = kRecord + 200;
  TempFolder folder_;
  InputFiles inputs_;
  CopyPlan plan_;
};

void flip_bit(const fs::path& file, uint64_t offset) {
  std::fstream stream(file, std::ios::in | std::ios::out | std::ios::binary);
  stream.seekg(static_cast<std::streamoff>(offset));
  const char byte = static_cast<char>(stream.get() ^ 1);
  stream.seekp(static_cast<std::streamoff>(offset));
  stream.put(byte);
}

TEST_F(OutputSumsTest, FindsWhatWasWrittenOnAnyNumberOfThreads) {
  for (const unsigned threads : {1u, 2u, 8u}) {
    EXPECT_EQ(written_and_read_back([](const fs::path&) {}, threads), kSize + 5);
  }
}

TEST_F(OutputSumsTest, NoticesABitThatIsNotAsItWasMeant) {
  const uint64_t chunk = OutputSums::kChunk;
  for (const uint64_t offset :
       {uint64_t{0}, uint64_t{99}, uint64_t{5000}, chunk - 3, chunk + 2, chunk + 4000, kSize - 1}) {
    EXPECT_ERROR(written_and_read_back([&](const fs::path& at) { flip_bit(at / "large", offset); }),
                 IoError, "large: at " + std::to_string(offset / chunk * chunk));
  }
  EXPECT_ERROR(written_and_read_back([](const fs::path& at) { flip_bit(at / "small", 4); }),
               IoError, "small: at 0: the disk does not give back the 5 bytes");
}

TEST_F(OutputSumsTest, NoticesAChecksumThatIsNotAsItWasMeant) {
  const uint64_t end = 100 + kRecord;
  for (const uint64_t patch : {uint64_t{4}, OutputSums::kChunk - 2, end + 50}) {
    for (uint64_t i = 0; i < 4; ++i) {
      EXPECT_ERROR(
          written_and_read_back([&](const fs::path& at) { flip_bit(at / "large", patch + i); }),
          IoError,
          "large: at " + std::to_string(patch) + ": the disk does not give back the check");
    }
  }
}

TEST_F(OutputSumsTest, NoticesAFileThatIsShorter) {
  for (const uint64_t size : {uint64_t{0}, uint64_t{100}, OutputSums::kChunk, kSize - 1}) {
    EXPECT_ERROR(
        written_and_read_back([&](const fs::path& at) { fs::resize_file(at / "large", size); }, 1),
        IoError, "large: at " + std::to_string(size) + ": is shorter than what was written");
  }
  EXPECT_ERROR(written_and_read_back([](const fs::path& at) { fs::remove(at / "small"); }), IoError,
               "small: cannot read back");
}

// Whoever reads a piece.
TEST_F(OutputSumsTest, AllRanksReadBack) {
  for (const int ranks : {2, 3, 5}) {
    EXPECT_EQ(written_and_read_back([](const fs::path&) {}, 2, ranks), kSize + 5);
    for (const uint64_t offset : {uint64_t{99}, OutputSums::kChunk + 70, kSize - 1}) {
      EXPECT_ERROR(written_and_read_back(
                       [&](const fs::path& at) { flip_bit(at / "large", offset); }, 2, ranks),
                   IoError, "the disk does not give back the");
    }
    for (const uint64_t patch : {uint64_t{4}, OutputSums::kChunk - 2, 100 + kRecord + 50}) {
      EXPECT_ERROR(written_and_read_back(
                       [&](const fs::path& at) { flip_bit(at / "large", patch + 3); }, 2, ranks),
                   IoError, "the disk does not give back the check");
    }
  }
}

TEST(RateLimit, LetsNoMoreThanTheRatePass) {
  using Clock = std::chrono::steady_clock;
  const std::atomic<bool> cancelled{false};
  RateLimit limit(1'000'000, cancelled);
  const auto start = Clock::now();
  for (int i = 0; i < 6; ++i) limit.take(50'000);
  // The last one need not be waited for.
  EXPECT_GE(Clock::now() - start, std::chrono::milliseconds(250));
  RateLimit none(0, cancelled);
  none.take(uint64_t{1} << 60);
}

TEST(RateLimit, HearsThatTheRunIsCancelled) {
  std::atomic<bool> cancelled{true};
  RateLimit limit(1, cancelled);
  limit.take(uint64_t{1} << 40);
  limit.take(1);  // would wait for 35,000 years
}

}  // namespace
}  // namespace dsckpt
