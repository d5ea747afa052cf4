#include "exec/share_forecast.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "base/kernels.h"
#include "exec/executor.h"
#include "exec/portion.h"
#include "support/plan_tools.h"
#include "support/random_inputs.h"

namespace dsckpt {
namespace {

using enum DType;
using test::kMiB;

class ShareForecastTest : public test::RandomInputsTest {
 protected:
  static constexpr uint64_t kUnit = kMiB / 4;

  ShareForecastTest() : RandomInputsTest(24 * kMiB) {
    PlanBuilder builder;
    builder.put(builder.add_output("small", 3000), 0, test::flat(0, 0, uint8, 3000));
    builder.add_output("empty", 0);
    const OutputId large = builder.add_output("large", 40 * kMiB);
    builder.put(large, 0, test::flat(1, 0, uint8, 20 * kMiB));
    builder.put(large, 20 * kMiB, test::flat(2, 0, uint8, 20 * kMiB));
    // Half as long as what is read for it.
    const OutputId cast = builder.add_output("cast", 2 * kMiB);
    builder.put(
        cast, 0,
        TensorSource::stored({0, 0, 4 * kMiB}, float32, {static_cast<int64_t>(kMiB)}).to(bfloat16));
    plan_ = builder.finish();
    plan_.validate(test::planned(inputs_));
    // The plan leaves out 4 MiB of the last one, which is read to be checked.
    for (const auto& [file, size] : {std::pair<FileId, uint64_t>{1, 20 * kMiB}, {2, 24 * kMiB}}) {
      records_.push_back(
          {{file, 0, size}, crc32(0, as_byte_span(contents_[file]).first(size)), "record"});
    }
  }

  ShareForecast forecast(const ShareOptions& options) const {
    const RecordChecks checks(plan_, records_, false);
    return forecast_shares(plan_, checks.use(), kUnit, options);
  }

  CopyPlan plan_;
  std::vector<InputRecord> records_;
};

TEST_F(ShareForecastTest, ComesToWhatOneProcessDoes) {
  struct Nowhere : Sink {
    void write_at(OutputId, uint64_t, std::span<const std::byte>) override {}
    void finish(OutputId) override {}
  } nowhere;
  Progress progress;
  const RunStats alone =
      execute(plan_, inputs_, nowhere, progress, {.unit_bytes = kUnit, .records = records_});
  EXPECT_EQ(alone.bytes_read, 44 * kMiB + 4 * kMiB + 3000);
  for (const int ranks : {1, 2, 3, 7, 200}) {
    SCOPED_TRACE(ranks);
    const ShareForecast found = forecast({.ranks = ranks});
    ASSERT_EQ(found.ranks.size(), static_cast<size_t>(ranks));
    RankForecast sum;
    uint64_t shares = 0;
    for (const RankForecast& rank : found.ranks) {
      sum.bytes_written += rank.bytes_written;
      sum.bytes_read += rank.bytes_read;
      sum.bytes_done += rank.bytes_done;
      sum.outputs += rank.outputs;
      shares += rank.shared_outputs;
    }
    EXPECT_EQ(sum.bytes_written, plan_.bytes_written());
    EXPECT_EQ(sum.bytes_read, alone.bytes_read);
    EXPECT_EQ(sum.bytes_done, progress.bytes_total);
    EXPECT_EQ(found.outputs, 4u);
    // A writer to a shared file is one more than one.
    EXPECT_EQ(sum.outputs - shares, 4 - found.shared_outputs);
  }
}

TEST_F(ShareForecastTest, CountsThePortionsAsTheyAreCut) {
  const ShareForecast found = forecast({.ranks = 3});
  const RecordChecks checks(plan_, records_, false);
  const Units units(plan_, checks.extra_reads(), kUnit);
  const PortionCutter cutter(plan_, units, checks.use(), kUnit);
  const Shares shares(units, {}, {.ranks = 3});
  for (int rank = 0; rank < 3; ++rank) {
    uint64_t bytes = 0;
    for (const Shares::Piece& piece : shares.of(rank)) {
      bytes += cutter.cut(piece.batches).encode().size();
    }
    EXPECT_EQ(found.ranks.at(static_cast<size_t>(rank)).plan_bytes, bytes);
    EXPECT_EQ(found.ranks.at(static_cast<size_t>(rank)).portions, shares.of(rank).size());
  }
}

TEST_F(ShareForecastTest, SaysWhichFilesAreShared) {
  const ShareForecast found = forecast({.ranks = 2});
  EXPECT_EQ(found.shared_outputs, 1u);  // the large one
  // small and empty, too; the last rank has the cast as well, and reads all three files.
  EXPECT_EQ(found.ranks[0].outputs, 3u);
  EXPECT_EQ(found.ranks[0].inputs, 3u);
  EXPECT_EQ(found.ranks[1].outputs, 2u);
  EXPECT_EQ(found.ranks[1].inputs, 2u);
  for (const RankForecast& rank : found.ranks) EXPECT_EQ(rank.shared_outputs, 1u);

  const ShareForecast whole = forecast({.ranks = 2, .whole_outputs = true});
  EXPECT_EQ(whole.shared_outputs, 0u);
  EXPECT_GT(whole.balance(), 1.5);  // the large one cannot be cut
  EXPECT_LT(found.balance(), 1.05);
}

TEST(ShareForecastRateTest, IsWhatTimeIsPredictedBy) {
  ShareForecast forecast{.ranks = {{.bytes_written = 600, .bytes_read = 400},
                                   {.bytes_written = 900, .bytes_read = 900}}};
  EXPECT_EQ(forecast.seconds(), 0);
  forecast.disk_rate = 100;
  EXPECT_DOUBLE_EQ(forecast.seconds(forecast.ranks[0]), 10);
  EXPECT_DOUBLE_EQ(forecast.seconds(), 18);
  EXPECT_EQ(ShareForecast().balance(), 1);
}

}  // namespace
}  // namespace dsckpt
