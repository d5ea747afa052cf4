// Every element is accounted for: stage_1_and_2.py flattens a group, pads it to a multiple of the
// ranks and gives each rank one part.
#include <gtest/gtest.h>

#include "support/zero_checkpoint.h"

namespace dsckpt {
namespace {

using nlohmann::ordered_json;
using test::numbers;
using test::ZeroCheckpoint;
using Texts = std::vector<std::string>;

const std::string kFlat = "single_partition_of_fp32_groups[0]";
const std::string kState = "base_optimizer_state.state[0]";

void set_masters(ZeroCheckpoint& checkpoint, int64_t rank, const ordered_json& tensor) {
  checkpoint.optim(rank)["single_partition_of_fp32_groups"] = ordered_json::array({tensor});
}

// 11 elements over two ranks: 6 each. The last one of the last rank is padding, which DeepSpeed
// cuts off the masters and not off the states.
void pad(ZeroCheckpoint& checkpoint, const ordered_json& exp_avg) {
  checkpoint.model()["param_shapes"] = ordered_json::array({{{"weight", {8}}, {"bias", {3}}}});
  checkpoint.model()["module"]["bias"] = numbers({3}, 18, "bfloat16");
  set_masters(checkpoint, 1, numbers({5}, 16));
  checkpoint.optim(1)["group_paddings"] = {1};
  checkpoint.states(1) = {{"step", 4}, {"exp_avg", exp_avg}};
  checkpoint.states(0).erase("exp_avg_sq");
}

TEST(VerifyLayout, PartitionsWithTheirPaddingAreEquallyLong) {
  ZeroCheckpoint checkpoint(3);
  set_masters(checkpoint, 1, numbers({3}, 14));
  checkpoint.states(1) = {{"step", 4}, {"exp_avg", numbers({3}, 100)}};
  const VerifyReport report = checkpoint.verify();
  EXPECT_EQ(test::texts_of(report),
            (Texts{"layout " + ZeroCheckpoint::optim_name(1) + " [" + kFlat +
                   "]: has 3 elements, with its padding; other ranks "
                   "have 4"}));
  EXPECT_EQ(report.findings.at(0).offset, 3u);
}

TEST(VerifyLayout, PaddingThatIsNotThereIsMissed) {
  ZeroCheckpoint checkpoint(3);
  checkpoint.optim(1)["group_paddings"] = {2};
  const Texts findings = checkpoint.findings();
  ASSERT_FALSE(findings.empty());
  EXPECT_EQ(findings.front(), "layout " + ZeroCheckpoint::optim_name(1) + " [" + kFlat +
                                  "]: has 6 elements, with its padding; other ranks have 4");
}

TEST(VerifyLayout, PaddingIsNotNegative) {
  ZeroCheckpoint checkpoint(3);
  checkpoint.optim(1)["group_paddings"] = {-1};
  EXPECT_EQ(checkpoint.findings(),
            (Texts{"layout " + ZeroCheckpoint::optim_name(1) +
                   " [optimizer_state_dict.group_paddings]: does not fit the groups"}));
}

TEST(VerifyLayout, RanksHaveEquallyManyFlatTensors) {
  ZeroCheckpoint checkpoint(3);
  checkpoint.optim(1)["single_partition_of_fp32_groups"].push_back(numbers({4}, 14));
  checkpoint.optim(1)["group_paddings"] = {0, 0};
  EXPECT_EQ(checkpoint.findings(), (Texts{"layout " + ZeroCheckpoint::optim_name(1) +
                                          " [optimizer_state_dict]: has 2 flat tensors, other "
                                          "ranks have 1"}));
}

TEST(VerifyLayout, StatesAreAsLongAsThePartition) {
  ZeroCheckpoint checkpoint(2);
  checkpoint.states(1)["exp_avg_sq"] = numbers({7}, 200);
  const VerifyReport report = checkpoint.verify();
  EXPECT_EQ(test::texts_of(report),
            (Texts{"layout " + ZeroCheckpoint::optim_name(1) + " [" + kState +
                   ".exp_avg_sq]: has 7 elements, the partition has 6"}));
  EXPECT_EQ(report.findings.at(0).offset, 6u);
}

TEST(VerifyLayout, TensorsOfAFileShareNoElements) {
  ZeroCheckpoint checkpoint(2);
  for (const char* key : {"exp_avg", "exp_avg_sq"}) {
    checkpoint.states(1)[key] = {{"tensor", {6}}, {"first", 100}, {"storage", "one"}};
  }
  const Texts findings = checkpoint.findings();
  ASSERT_EQ(findings.size(), 1u);
  EXPECT_EQ(findings.front().rfind("layout " + ZeroCheckpoint::optim_name(1), 0), 0u)
      << findings.front();
  EXPECT_NE(findings.front().find("exp_avg_sq"), std::string::npos) << findings.front();
  EXPECT_NE(findings.front().find("shares elements with"), std::string::npos) << findings.front();
}

// Gradients of padding are zero, so the averages of Adam stay zero there.
TEST(VerifyLayout, WhatStartsAtZeroStaysZeroInPadding) {
  ZeroCheckpoint checkpoint(2);
  pad(checkpoint, numbers({6}, 100));
  const VerifyReport report = checkpoint.verify();
  EXPECT_EQ(test::texts_of(report),
            (Texts{"layout " + ZeroCheckpoint::optim_name(1) + " [" + kState +
                   ".exp_avg]: an element of padding is not zero"}));
  EXPECT_EQ(report.findings.at(0).offset, 5u);
}

// param_slice_mappings: of the 12 elements rank 0 has 6 of weight, rank 1 the other 2 and bias.
TEST(VerifyLayout, AMappingIsThatOfTheRank) {
  const auto slice = [](int64_t start, int64_t numel) {
    return ordered_json{{"object", {{"start", start}, {"numel", numel}}}};
  };
  const ordered_json of_0 = ordered_json::array({{{"weight", slice(0, 6)}}});
  const ordered_json of_1 = ordered_json::array({{{"weight", slice(0, 2)}, {"bias", slice(2, 4)}}});
  ZeroCheckpoint right(2);
  right.optim(0)["param_slice_mappings"] = of_0;
  right.optim(1)["param_slice_mappings"] = of_1;
  EXPECT_EQ(right.findings(), Texts());
  ZeroCheckpoint wrong(2);
  wrong.optim(0)["param_slice_mappings"] = of_1;
  wrong.optim(1)["param_slice_mappings"] = of_1;
  EXPECT_EQ(wrong.findings(), (Texts{"wrong-rank " + ZeroCheckpoint::optim_name(0) +
                                     " [param_slice_mappings]: has the parameters of rank 1"}));
}

TEST(VerifyLayout, AWeightHasTheShapeOfItsParameter) {
  ZeroCheckpoint checkpoint(2);
  checkpoint.model()["module"]["bias"] = numbers({2, 2}, 18, "bfloat16");
  const Texts findings = checkpoint.findings();
  ASSERT_EQ(findings.size(), 1u);
  EXPECT_EQ(findings.front().rfind("shape mp_rank_00_model_states.pt", 0), 0u) << findings.front();
  EXPECT_NE(findings.front().find("bias"), std::string::npos) << findings.front();
}

}  // namespace
}  // namespace dsckpt
