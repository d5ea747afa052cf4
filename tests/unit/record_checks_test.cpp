#include "exec/record_checks.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <stdexcept>
#include <string>

#include "base/bytes.h"
#include "base/kernels.h"
#include "dsckpt/error.h"
#include "support/expect_error.h"
#include "support/plan_tools.h"
#include "support/temp_file.h"

namespace dsckpt {
namespace {

// A file of 1,000,000 bytes with a record at [1000, 901000).
class RecordChecksTest : public testing::Test {
 protected:
  static constexpr uint64_t kBegin = 1000;
  static constexpr uint64_t kSize = 900'000;

  RecordChecksTest() {
    file_ = inputs_.add(folder_.write("in.pt", bytes_));
    record_ = {{file_, kBegin, kSize}, crc_of(kBegin, kSize), "data/7"};
  }

  uint32_t crc_of(uint64_t offset, uint64_t size) const {
    return crc32(0, as_byte_span(bytes_).subspan(offset, size));
  }

  // A plan that reads the given [begin, end) of the file, one item each.
  CopyPlan reading(const std::vector<std::pair<uint64_t, uint64_t>>& ranges) const {
    PlanBuilder builder;
    uint64_t size = 0;
    for (const auto& [begin, end] : ranges) size += end - begin;
    builder.add_output("out", size);
    uint64_t dst = 0;
    for (const auto& [begin, end] : ranges) {
      const auto count = static_cast<int64_t>(end - begin);
      builder.put(0, dst, TensorSource::stored({file_, begin, end - begin}, DType::uint8, {count}));
      dst += end - begin;
    }
    CopyPlan plan = builder.finish();
    plan.validate(test::planned(inputs_));
    return plan;
  }

  // Reports what an executor would.
  void run(const CopyPlan& plan, RecordChecks& checks) const {
    for (size_t i = plan.items().size(); i-- > 0;) {
      const CopyItem& item = plan.items()[i];
      if (checks.record_of_item(i) == RecordChecks::kNone) continue;
      // In two pieces, the second first.
      const Rows& rows = item.source;
      const uint64_t half = rows.row_bytes / 2;
      for (const Extent& piece : {Extent{rows.file, rows.offset + half, rows.row_bytes - half},
                                  Extent{rows.file, rows.offset, half}}) {
        checks.report(checks.record_of_item(i), piece, crc_of(piece.offset, piece.size));
      }
    }
    for (const RecordChecks::ExtraRead& extra : checks.extra_reads()) {
      checks.report(extra.record, extra.extent, crc_of(extra.extent.offset, extra.extent.size));
    }
  }

  test::TempFolder folder_;
  std::string bytes_ = test::random_bytes(1'000'000, 1);
  InputFiles inputs_;
  FileId file_ = 0;
  InputRecord record_;
};

TEST_F(RecordChecksTest, ChecksARecordReadInPiecesWithoutReadingItAgain) {
  const CopyPlan plan = reading({{1000, 5000}, {300'000, 901'000}, {5000, 300'000}});
  RecordChecks checks(plan, {record_}, false);
  EXPECT_EQ(checks.checked(), 1u);
  EXPECT_TRUE(checks.extra_reads().empty());
  run(plan, checks);
  EXPECT_NO_THROW(checks.verify(inputs_));
}

TEST_F(RecordChecksTest, NamesTheRecordThatIsWrong) {
  const CopyPlan plan = reading({{1000, 901'000}});
  record_.crc32 ^= 1;
  RecordChecks checks(plan, {record_}, false);
  run(plan, checks);
  EXPECT_ERROR(checks.verify(inputs_), CorruptError, "data/7: at 1000: CRC32 mismatch");
}

// After any fault: a record that should have been checked and was not never counts as right.
TEST_F(RecordChecksTest, IsNotDoneWhileAnyPartIsUnchecked) {
  const CopyPlan plan = reading({{1000, 901'000}});
  RecordChecks checks(plan, {record_}, false);
  EXPECT_THROW(checks.verify(inputs_), std::logic_error);
  checks.report(0, {file_, 1000, 500'000}, crc_of(1000, 500'000));
  EXPECT_THROW(checks.verify(inputs_), std::logic_error);
  checks.report(0, {file_, 501'001, 399'999}, crc_of(501'001, 399'999));
  EXPECT_THROW(checks.verify(inputs_), std::logic_error);
  checks.report(0, {file_, 501'000, 1}, crc_of(501'000, 1));
  EXPECT_NO_THROW(checks.verify(inputs_));
}

TEST_F(RecordChecksTest, ReadsTheLittleThatThePlanLeavesOut) {
  const CopyPlan plan = reading({{1016, 400'000}, {400'064, 900'990}});
  RecordChecks checks(plan, {record_}, false);
  ASSERT_EQ(checks.extra_reads().size(), 3u);
  EXPECT_EQ(checks.extra_reads()[0].extent, (Extent{file_, 1000, 16}));
  EXPECT_EQ(checks.extra_reads()[1].extent, (Extent{file_, 400'000, 64}));
  EXPECT_EQ(checks.extra_reads()[2].extent, (Extent{file_, 900'990, 10}));
  run(plan, checks);
  EXPECT_NO_THROW(checks.verify(inputs_));
}

TEST_F(RecordChecksTest, ReadsTheRestOfARecordOfWhichThePlanReadsAPart) {
  const CopyPlan plan = reading({{1000, 500'000}});
  for (const bool wrong : {false, true}) {
    InputRecord record = record_;
    if (wrong) ++record.crc32;
    RecordChecks checks(plan, {record}, false);
    EXPECT_EQ(checks.checked(), 1u);
    EXPECT_EQ(checks.unchecked(), 0u);
    ASSERT_EQ(checks.extra_reads().size(), 1u);
    EXPECT_EQ(checks.extra_reads()[0].extent, (Extent{file_, 500'000, 401'000}));
    run(plan, checks);
    if (wrong) {
      EXPECT_ERROR(checks.verify(inputs_), CorruptError, "data/7");
    } else {
      EXPECT_NO_THROW(checks.verify(inputs_));
    }
  }
}

// The records are said to be long; nothing is read of them here.
TEST_F(RecordChecksTest, CountsRecordsWhoseRestWouldBeMostOfTheWork) {
  constexpr uint64_t kMost = RecordChecks::kMostBesides;
  const CopyPlan plan = reading({{0, 1000}, {100'000, 100'010}, {900'000, 900'010}});
  const InputRecord small{{file_, 0, 2000}, 0, "data/0"};
  const InputRecord fits{{file_, 100'000, 700'000}, 0, "data/1"};
  const InputRecord large{{file_, 900'000, kMost}, 0, "data/2"};
  const RecordChecks checks(plan, {small, fits, large}, false);
  EXPECT_EQ(checks.checked(), 2u);
  EXPECT_EQ(checks.unchecked(), 1u);
  EXPECT_EQ(checks.record_of_item(0), 0u);
  EXPECT_EQ(checks.record_of_item(1), 1u);
  EXPECT_EQ(checks.record_of_item(2), RecordChecks::kNone);
  const RecordChecks all(plan, {small, fits, large}, true);
  EXPECT_EQ(all.checked(), 3u);
  EXPECT_EQ(all.unchecked(), 0u);
}

// However many there are: together they leave out more than may be read besides.
TEST_F(RecordChecksTest, ChecksRecordsOfWhichLittleIsLeftOut) {
  constexpr uint64_t kRecord = 60 << 10;
  constexpr uint64_t kCount = RecordChecks::kMostBesides / kRecord + 100;
  std::vector<InputRecord> records;
  const FileId file = inputs_.add(folder_.write("sparse.pt", ""));
  PlanBuilder builder;
  builder.add_output("out", kCount);
  for (uint64_t i = 0; i < kCount; ++i) {
    builder.put(0, i, TensorSource::stored({file, i * kRecord, 1}, DType::uint8, {1}));
    records.push_back({{file, i * kRecord, kRecord}, 0, "data/" + std::to_string(i)});
  }
  const RecordChecks checks(builder.finish(), records, false);
  EXPECT_EQ(checks.checked(), kCount);
  EXPECT_EQ(checks.unchecked(), 0u);
}

TEST_F(RecordChecksTest, ChecksEverythingWhenAsked) {
  const CopyPlan plan = reading({{1000, 500'000}});
  const InputRecord other{{file_, 950'000, 50'000}, crc_of(950'000, 50'000), "data/8"};
  RecordChecks checks(plan, {other, record_}, true);
  EXPECT_EQ(checks.checked(), 2u);
  run(plan, checks);
  EXPECT_NO_THROW(checks.verify(inputs_));

  InputRecord wrong = other;
  wrong.crc32 = 0;
  RecordChecks again(plan, {wrong, record_}, true);
  run(plan, again);
  EXPECT_ERROR(again.verify(inputs_), CorruptError, "data/8");
}

TEST_F(RecordChecksTest, ChecksBytesThatAreReadTwiceWithTheFirstRead) {
  const CopyPlan plan = reading({{1000, 500'000}, {2000, 3000}, {400'000, 901'000}});
  RecordChecks checks(plan, {record_}, false);
  EXPECT_EQ(checks.record_of_item(0), 0u);
  EXPECT_EQ(checks.record_of_item(1), RecordChecks::kNone);
  EXPECT_EQ(checks.record_of_item(2), RecordChecks::kNone);
  ASSERT_EQ(checks.extra_reads().size(), 1u);
  EXPECT_EQ(checks.extra_reads()[0].extent, (Extent{file_, 500'000, 401'000}));
  run(plan, checks);
  EXPECT_NO_THROW(checks.verify(inputs_));
}

TEST_F(RecordChecksTest, ReadsARecordOnceMoreWhenItIsReadInRows) {
  PlanBuilder builder;
  builder.add_output("out", kSize);
  // Transposed: the order of the bytes is not the record's.
  builder.put(0, 0,
              TensorSource::stored({file_, kBegin, kSize}, DType::uint8, {900, 1000}, {1, 900}));
  const CopyPlan plan = builder.finish();
  RecordChecks checks(plan, {record_}, false);
  EXPECT_EQ(checks.checked(), 1u);
  ASSERT_EQ(checks.extra_reads().size(), 1u);
  EXPECT_EQ(checks.extra_reads()[0].extent, record_.extent);
  run(plan, checks);
  EXPECT_NO_THROW(checks.verify(inputs_));
}

TEST_F(RecordChecksTest, ChecksColumnsWithoutGapsWhereTheyAreRead) {
  // The record is two slices, the second of which is the left one.
  const auto slice = [&](uint64_t begin, int64_t width) {
    return TensorSource::stored({file_, begin, static_cast<uint64_t>(1000 * width)}, DType::uint8,
                                {1000, width});
  };
  PlanBuilder builder;
  builder.add_output("out", kSize);
  builder.put(0, 0, TensorSource::cat(1, {slice(kBegin + 300'000, 600), slice(kBegin, 300)}));
  const CopyPlan plan = builder.finish();
  RecordChecks checks(plan, {record_}, false);
  EXPECT_EQ(checks.checked(), 1u);
  EXPECT_TRUE(checks.extra_reads().empty());
  EXPECT_EQ(checks.record_of_item(0), RecordChecks::kNone);
  for (size_t i = 0; i < 2; ++i) {
    const Rows& column = plan.operands().at(i);
    ASSERT_EQ(checks.record_of_operand(i), 0u);
    const uint64_t size = column.row_bytes * 1000;
    checks.report(0, {column.file, column.offset, size}, crc_of(column.offset, size));
  }
  EXPECT_NO_THROW(checks.verify(inputs_));
}

TEST_F(RecordChecksTest, JoinsPiecesReportedInAnyOrder) {
  const CopyPlan plan = reading({{1000, 901'000}});
  std::vector<uint64_t> order(900);
  for (size_t i = 0; i < order.size(); ++i) order[i] = i;
  for (uint64_t seed = 0; seed < 20; ++seed) {
    for (const bool wrong : {false, true}) {
      RecordChecks checks(plan, {record_}, false);
      std::mt19937_64 random(seed);
      std::shuffle(order.begin(), order.end(), random);
      for (const uint64_t i : order) {
        const uint32_t crc = crc_of(kBegin + 1000 * i, 1000);
        checks.report(0, {file_, kBegin + 1000 * i, 1000}, wrong && i == seed ? crc ^ 1 : crc);
      }
      if (wrong) {
        EXPECT_ERROR(checks.verify(inputs_), CorruptError, "CRC32 mismatch");
      } else {
        EXPECT_NO_THROW(checks.verify(inputs_));
      }
    }
  }
}

TEST_F(RecordChecksTest, IgnoresBytesOutsideTheRecordsAndEmptyRecords) {
  const CopyPlan plan = reading({{0, 1000}, {1000, 901'000}, {901'000, 1'000'000}});
  const InputRecord empty{{file_, 1000, 0}, 77, "data/0"};
  RecordChecks checks(plan, {record_, empty}, true);
  EXPECT_EQ(checks.checked(), 1u);
  EXPECT_EQ(checks.record_of_item(0), RecordChecks::kNone);
  EXPECT_NE(checks.record_of_item(1), RecordChecks::kNone);
  EXPECT_EQ(checks.record_of_item(2), RecordChecks::kNone);
  run(plan, checks);
  EXPECT_NO_THROW(checks.verify(inputs_));
}

TEST_F(RecordChecksTest, ReadsOnceMoreWhatIsReadTogetherWithOthers) {
  const InputRecord next{{file_, 910'000, 80'000}, crc_of(910'000, 80'000), "data/8"};
  // From before the first record into the second.
  const CopyPlan plan = reading({{500, 950'000}});
  for (const uint32_t wrong : {0u, 1u}) {
    InputRecord second = next;
    second.crc32 += wrong;
    RecordChecks checks(plan, {record_, second}, false);
    EXPECT_EQ(checks.checked(), 2u);
    EXPECT_EQ(checks.record_of_item(0), RecordChecks::kNone);
    ASSERT_EQ(checks.extra_reads().size(), 2u);
    EXPECT_EQ(checks.extra_reads()[0].extent, record_.extent);
    EXPECT_EQ(checks.extra_reads()[1].extent, next.extent);
    run(plan, checks);
    if (wrong != 0) {
      EXPECT_ERROR(checks.verify(inputs_), CorruptError, "data/8");
    } else {
      EXPECT_NO_THROW(checks.verify(inputs_));
    }
  }
}

}  // namespace
}  // namespace dsckpt
