// The rule's numbers are what DeepSpeedConfig._configure_train_batch_size gives.
#include "reshard/batch_plan.h"

#include <gtest/gtest.h>

#include <optional>
#include <string>
#include <vector>

namespace dsckpt {
namespace {

using nlohmann::ordered_json;
using Number = std::optional<int64_t>;

EngineConfig config_of(Number train, Number micro, Number accumulation) {
  EngineConfig config;
  config.train_batch_size = train;
  config.train_micro_batch_size_per_gpu = micro;
  config.gradient_accumulation_steps = accumulation;
  return config;
}

TEST(BatchPlan, DerivesTheOldBatchAsDeepSpeedDoes) {
  struct Row {
    Number train;
    Number micro;
    Number accumulation;
    uint32_t ranks;
    // All 0 where DeepSpeed refuses the configuration.
    int64_t derived_train;
    int64_t derived_micro;
    int64_t derived_accumulation;
  };
  const std::vector<Row> rows{
      {{24}, {3}, {4}, 2, 24, 3, 4},  {{24}, {3}, {4}, 3, 0, 0, 0},
      {{120}, {}, {}, 4, 120, 30, 1}, {{120}, {}, {}, 7, 0, 0, 0},
      {{}, {12}, {}, 2, 24, 12, 1},   {{}, {12}, {5}, 2, 120, 12, 5},
      {{120}, {5}, {}, 8, 120, 5, 3}, {{120}, {6}, {}, 4, 120, 6, 5},
      {{120}, {7}, {}, 4, 0, 0, 0},   {{120}, {}, {5}, 4, 120, 6, 5},
      {{120}, {}, {7}, 4, 0, 0, 0},   {{120}, {}, {5}, 5, 0, 0, 0},
      {{8}, {16}, {}, 1, 0, 0, 0},    {{4}, {}, {}, 8, 0, 0, 0},
      {{}, {}, {}, 2, 0, 0, 0},       {{}, {}, {4}, 2, 0, 0, 0},
      {{0}, {}, {}, 2, 0, 0, 0},      {{}, {0}, {}, 2, 0, 0, 0},
      {{24}, {2}, {0}, 2, 0, 0, 0},   {{}, {-3}, {}, 2, 0, 0, 0},
      {{}, {-3}, {-2}, 2, 0, 0, 0},   {{1}, {}, {}, 1, 1, 1, 1},
  };
  for (size_t i = 0; i < rows.size(); ++i) {
    SCOPED_TRACE(i);
    const Row& row = rows[i];
    const BatchPlan plan =
        plan_batch(config_of(row.train, row.micro, row.accumulation), row.ranks, 1);
    EXPECT_EQ(plan.unknown.empty(), row.derived_train != 0) << plan.unknown;
    EXPECT_EQ(plan.global, row.derived_train);
    EXPECT_EQ(plan.old_setting, (BatchSetting{row.derived_micro, row.derived_accumulation}));
    EXPECT_EQ(plan.settings.empty(), row.derived_train == 0);
    EXPECT_EQ(plan.choice().has_value(), row.derived_train != 0);
  }
}

TEST(BatchPlan, ListsAllSettingsThatKeepTheGlobalBatch) {
  // 24 samples on 2 ranks: 12 each.
  const BatchPlan plan = plan_batch(config_of(24, 4, {}), 3, 2);
  EXPECT_EQ(plan.old_setting, (BatchSetting{4, 2}));
  EXPECT_EQ(plan.settings,
            (std::vector<BatchSetting>{{1, 12}, {2, 6}, {3, 4}, {4, 3}, {6, 2}, {12, 1}}));
  EXPECT_EQ(plan.suggested, (BatchSetting{4, 3}));
  EXPECT_EQ(plan.choice(), (BatchChoice{24, {4, 3}}));
  EXPECT_TRUE(plan.nearest.empty());
}

TEST(BatchPlan, SuggestsNoLargerMicroBatchThanBefore) {
  struct Row {
    uint32_t ranks;
    BatchSetting suggested;
  };
  // 120 samples, 4 ranks, micro batch 5 before.
  for (const Row& row : {Row{1, {5, 24}}, Row{2, {5, 12}}, Row{3, {5, 8}}, Row{4, {5, 6}},
                         Row{5, {4, 6}}, Row{8, {5, 3}}, Row{30, {4, 1}}, Row{120, {1, 1}}}) {
    EXPECT_EQ(plan_batch(config_of(120, 5, {}), 4, row.ranks).suggested, row.suggested)
        << row.ranks;
  }
  // 7 samples a rank: only 1 and 7 divide, and 7 is more than before.
  EXPECT_EQ(plan_batch(config_of(28, 2, {}), 2, 4).suggested, (BatchSetting{1, 7}));
  // A square is listed once.
  EXPECT_EQ(plan_batch(config_of(9, 9, {}), 1, 1).settings,
            (std::vector<BatchSetting>{{1, 9}, {3, 3}, {9, 1}}));
}

TEST(BatchPlan, NamesTheNearestGlobalBatchesWhereTheRanksDoNotDivideIt) {
  const BatchPlan five = plan_batch(config_of(24, 12, 1), 2, 5);
  EXPECT_TRUE(five.settings.empty());
  EXPECT_EQ(five.suggested, std::nullopt);
  EXPECT_EQ(five.nearest, (std::vector<BatchChoice>{{25, {5, 1}}, {20, {4, 1}}}));
  EXPECT_EQ(five.choice(), (BatchChoice{25, {5, 1}}));

  const BatchPlan seven = plan_batch(config_of(120, 6, {}), 4, 7);
  // 119 = 7 * 17, and 17 has no divisor up to 6 but 1; 126 = 7 * 18.
  EXPECT_EQ(seven.nearest, (std::vector<BatchChoice>{{119, {1, 17}}, {126, {6, 3}}}));

  // As close: the smaller one first.
  EXPECT_EQ(plan_batch(config_of(24, 12, 1), 2, 16).nearest,
            (std::vector<BatchChoice>{{16, {1, 1}}, {32, {2, 1}}}));
  // More ranks than samples.
  EXPECT_EQ(plan_batch(config_of(4, 2, {}), 2, 7).nearest, (std::vector<BatchChoice>{{7, {1, 1}}}));
}

TEST(BatchPlan, SaysWhyItDoesNotKnow) {
  EXPECT_EQ(text_of(plan_batch(config_of({}, {}, 4), 2, 3)),
            "batch sizes for 3 ranks cannot be planned: the configuration has neither "
            "train_batch_size nor train_micro_batch_size_per_gpu\n");
  EXPECT_EQ(text_of(plan_batch(config_of(24, 3, 4), 3, 1)),
            "batch sizes for 1 rank cannot be planned: train_batch_size is 24, which is not micro "
            "batch 3 x accumulation 4 x 3 ranks\n");
  EXPECT_EQ(plan_batch(config_of(0, {}, {}), 2, 3).unknown, "train_batch_size is 0");
  EXPECT_EQ(json_of(plan_batch(config_of({}, 0, {}), 2, 3)).dump(),
            R"({"old_ranks":2,"new_ranks":3,"unknown":"train_micro_batch_size_per_gpu is 0"})");
}

TEST(BatchPlan, DoesNotOverflow) {
  constexpr int64_t kLarge = int64_t{1} << 62;
  EXPECT_FALSE(plan_batch(config_of(kLarge, {}, {}), 2, 3).unknown.empty());
  EXPECT_FALSE(plan_batch(config_of({}, int64_t{1} << 39, int64_t{1} << 39), 4'000'000'000u, 3)
                   .unknown.empty());
  const BatchPlan plan = plan_batch(config_of(int64_t{1} << 40, {}, {}), 1, 4'000'000'000u);
  ASSERT_EQ(plan.nearest.size(), 2u);
  // 2^40 = 274.88 * 4e9
  EXPECT_EQ(plan.nearest[0].global, 1'100'000'000'000);
  EXPECT_EQ(plan.nearest[1].global, 1'096'000'000'000);
}

TEST(BatchPlan, SetsTheThreeKeysInPlace) {
  EXPECT_EQ(
      with_batch(ordered_json::parse(R"({"a":1,"train_batch_size":"auto","b":2})"), {24, {4, 3}})
          .dump(),
      R"({"a":1,"train_batch_size":24,"b":2,"train_micro_batch_size_per_gpu":4,)"
      R"("gradient_accumulation_steps":3})");
}

TEST(BatchPlan, IsPrinted) {
  EXPECT_EQ(text_of(plan_batch(config_of(24, 4, 2), 3, 4)),
            "global batch 24 = micro batch 4 x accumulation 2 x 3 ranks\n"
            "on 4 ranks it is kept by\n"
            "  micro batch 1 x accumulation 6\n"
            "  micro batch 2 x accumulation 3\n"
            "  micro batch 3 x accumulation 2  (suggested)\n"
            "  micro batch 6 x accumulation 1  (needs more memory than before)\n");
  EXPECT_EQ(text_of(plan_batch(config_of(24, 12, 1), 2, 5)),
            "global batch 24 = micro batch 12 x accumulation 1 x 2 ranks\n"
            "no setting keeps it on 5 ranks, since 24 is not a multiple of 5; the nearest are\n"
            "  global batch 25 = micro batch 5 x accumulation 1 x 5 ranks\n"
            "  global batch 20 = micro batch 4 x accumulation 1 x 5 ranks\n");
}

TEST(BatchPlan, IsJson) {
  EXPECT_EQ(json_of(plan_batch(config_of(6, 3, 1), 2, 2)),
            ordered_json::parse(R"({"old_ranks":2,"new_ranks":2,"train_batch_size":6,
              "old":{"train_micro_batch_size_per_gpu":3,"gradient_accumulation_steps":1},
              "settings":[{"train_micro_batch_size_per_gpu":1,"gradient_accumulation_steps":3},
                          {"train_micro_batch_size_per_gpu":3,"gradient_accumulation_steps":1}],
              "suggested":{"train_micro_batch_size_per_gpu":3,"gradient_accumulation_steps":1},
              "nearest":[]})"));
  const ordered_json none = json_of(plan_batch(config_of(24, 12, 1), 2, 5));
  EXPECT_EQ(none["suggested"], nullptr);
  EXPECT_EQ(none["nearest"][0],
            ordered_json::parse(R"({"train_batch_size":25,"train_micro_batch_size_per_gpu":5,
                                    "gradient_accumulation_steps":1})"));
}

}  // namespace
}  // namespace dsckpt
