// The bytes that were meant to be written against those that are there.
#include "exec/output_sums.h"

#include <gtest/gtest.h>

#include <fstream>
#include <string>

#include "base/rate_limit.h"
#include "exec/rank_readers.h"
#include "exec/read_back.h"
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

// "large": 100 bytes, a record of more than a chunk, a tail of 100. The record's digest goes in
// front of it, behind it, and across the border of two chunks. "small", and "empty".
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
    OutputSums sums(plan_, staged);
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
      std::optional<Error> failure;
      test::run_ranks(ranks, {}, [&](Meeting& meeting) {
        try {
          RankReaders readers(meeting);
          read = read_back(meant, 0, {threads, progress, &readers});
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
          IoError, "large: at ");
    }
  }
}

// A run that stopped before it had all checksums.
TEST_F(OutputSumsTest, ReadsAroundWhatIsNotWrittenYet) {
  const uint64_t chunk = OutputSums::kChunk;
  const uint64_t size = 2 * chunk + 5000;
  const std::string bytes = test::random_bytes(size, 5);
  const std::vector<uint64_t> places{0, 700, chunk - 2, chunk + 300, size - 4};
  PlanBuilder builder;
  builder.put_literal(builder.add_output("out", size), 0, bytes);
  const CopyPlan plan = builder.finish();
  StagedOutput staged(plan, folder_.path() / "gaps");
  staged.prepare();
  OutputSums sums(plan, staged);
  const auto write = [&](uint64_t begin, uint64_t end) {
    sums.write_at(0, begin, as_byte_span(bytes).subspan(begin, end - begin));
  };
  uint64_t written = 0;
  for (const uint64_t place : places) {
    write(written, place);
    written = place + 4;
  }
  const fs::path file = staged.staged_path(0);
  const auto read = [&](const OutputSums& of) {
    Progress progress;
    return read_back(of.meant([&](OutputId) { return file; }, [](OutputId) { return "out"; }), 0,
                     {2, progress});
  };
  EXPECT_EQ(read(sums), size - 4 * places.size());
  EXPECT_EQ(sums.bytes(), size - 4 * places.size());
  // The bytes around a place are checked; the place is not.
  for (const uint64_t place : places) {
    if (place + 4 < size) {
      flip_bit(file, place + 1);
      EXPECT_EQ(read(sums), size - 4 * places.size()) << place;
      flip_bit(file, place + 4);
      EXPECT_ERROR(read(sums), IoError, "the disk does not give back");
      flip_bit(file, place + 4);
    }
    if (place > 0) {
      flip_bit(file, place - 1);
      EXPECT_ERROR(read(sums), IoError, "the disk does not give back");
      flip_bit(file, place - 1);
    }
  }
  // Another run takes it over and writes the places.
  OutputSums later(plan, staged);
  later.restore(sums.state());
  for (const uint64_t place : places) {
    later.write_at(0, place, as_byte_span(bytes).subspan(place, 4));
  }
  EXPECT_EQ(read(later), size);
  EXPECT_EQ(later.state().written.size(), 3u);
  EXPECT_TRUE(test::read_all(file) == bytes);
}

TEST_F(OutputSumsTest, NoticesAFileThatIsShorter) {
  for (const uint64_t size : {uint64_t{0}, uint64_t{100}, OutputSums::kChunk, kSize - 1}) {
    EXPECT_ERROR(
        written_and_read_back([&](const fs::path& at) { fs::resize_file(at / "large", size); }, 1),
        IoError, "large: at " + std::to_string(size) + ": is shorter than the written bytes");
  }
  EXPECT_ERROR(written_and_read_back([](const fs::path& at) { fs::remove(at / "small"); }), IoError,
               "small: cannot read back");
}

// The readers of a piece.
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
                   IoError, "the disk does not give back the");
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
