// Copies of ranks. At stage 3 every rank writes the buffers. Under tensor parallelism all ranks
// hold the parameters that are not cut. Copies within one file, and those of stage 0, are in
// verify_values_test.cpp.
#include <gtest/gtest.h>

#include "support/zero_checkpoint.h"

namespace dsckpt {
namespace {

using nlohmann::ordered_json;
using test::numbers;
using test::ZeroCheckpoint;
using Texts = std::vector<std::string>;

// Four ranks of stage 3, all with a buffer.
class VerifyBuffers : public testing::Test {
 protected:
  VerifyBuffers() {
    checkpoint_.make_stage_3(4);
    for (int64_t rank = 0; rank < 4; ++rank) {
      checkpoint_.model(rank)["buffer_names"] = {"table"};
      set(rank, "table", numbers({3}, 50));
    }
  }
  void set(int64_t rank, const std::string& name, const ordered_json& tensor) {
    checkpoint_.model(rank)["module"][name] = tensor;
  }

  ZeroCheckpoint checkpoint_;
};

TEST_F(VerifyBuffers, AreTheSameInAllRanks) {
  EXPECT_EQ(checkpoint_.findings(), Texts());
  set(2, "table", {{"tensor", {3}}, {"values", {50, 51, 53}}});
  const VerifyReport report = checkpoint_.verify();
  EXPECT_EQ(test::texts_of(report),
            (Texts{"replica " + ZeroCheckpoint::model_name(2) +
                   " [zero_pp_rank_2_mp_rank_00_model_states/data/2] table: differs from the copy "
                   "in " +
                   ZeroCheckpoint::display(ZeroCheckpoint::model_name(0))}));
  EXPECT_EQ(report.findings.at(0).rank.value().dp, 2u);
  // Records begin at multiples of 64 bytes; it is the third element that differs.
  EXPECT_EQ(report.findings.at(0).offset.value() % 64, 8u);
}

TEST_F(VerifyBuffers, MostRanksAreRightAlsoAgainstTheFirst) {
  set(0, "table", numbers({3}, 60));
  EXPECT_EQ(checkpoint_.findings(),
            (Texts{"replica " + ZeroCheckpoint::model_name(0) +
                   " [zero_pp_rank_0_mp_rank_00_model_states/data/2] table: differs from the copy "
                   "in " +
                   ZeroCheckpoint::display(ZeroCheckpoint::model_name(1))}));
}

TEST_F(VerifyBuffers, HaveOneShape) {
  set(1, "table", numbers({4}, 50));
  EXPECT_EQ(
      checkpoint_.findings(),
      (Texts{"shape " + ZeroCheckpoint::model_name(1) + " [module] table: is [4], but [3] in " +
             ZeroCheckpoint::display(ZeroCheckpoint::model_name(0))}));
}

TEST_F(VerifyBuffers, AreInTheFilesOfAllRanks) {
  checkpoint_.model(3)["module"].erase("table");
  EXPECT_EQ(checkpoint_.findings(),
            (Texts{"replica " + ZeroCheckpoint::model_name(3) +
                   " [module] table: is not there, "
                   "but is in " +
                   ZeroCheckpoint::display(ZeroCheckpoint::model_name(0))}));
}

// Each rank has seen other data.
TEST_F(VerifyBuffers, StatisticsOfBatchesMayDiffer) {
  for (int64_t rank = 0; rank < 4; ++rank) {
    checkpoint_.model(rank)["buffer_names"] = {"table", "norm.running_mean", "norm.running_var"};
    set(rank, "norm.running_mean", numbers({2}, rank));
    set(rank, "norm.running_var", numbers({2}, 10 + rank));
  }
  EXPECT_EQ(checkpoint_.findings(), Texts());
}

// Two tensor-parallel ranks, which have the same of all parameters.
class VerifyReplicated : public testing::Test {
 protected:
  VerifyReplicated() : checkpoint_(1) {
    checkpoint_.model()["mp_world_size"] = 2;
    checkpoint_.model()["universal_checkpoint_info"] = {
        {"tp_replicated_parameter_patterns", {"weight", "bias"}}};
    checkpoint_.files["mp_rank_01_model_states.pt"] = checkpoint_.model();
    checkpoint_.files[kOther] = checkpoint_.files[ZeroCheckpoint::optim_name(0)];
  }
  const std::string kOther = "zero_pp_rank_0_mp_rank_01_optim_states.pt";
  ZeroCheckpoint checkpoint_;
};

TEST_F(VerifyReplicated, MastersAndStatesAreTheSame) {
  EXPECT_EQ(checkpoint_.findings(), Texts());
  ordered_json& wrapper = checkpoint_.files[kOther]["optimizer_state_dict"];
  wrapper["base_optimizer_state"]["state"]["0"]["exp_avg"] = {
      {"tensor", {12}}, {"values", {100, 101, 102, 103, 104, 105, 106, 107, 108, 110, 110, 111}}};
  const VerifyReport report = checkpoint_.verify();
  EXPECT_EQ(test::texts_of(report),
            (Texts{"replica " + kOther +
                   " [zero_pp_rank_0_mp_rank_01_optim_states/data/0] bias: exp_avg of 'bias' on "
                   "tensor-parallel ranks 0 and 1 are not the same; the other is in " +
                   ZeroCheckpoint::display(ZeroCheckpoint::optim_name(0))}));
  EXPECT_EQ(report.findings.at(0).rank.value().mp, 1u);
  // Element 9 of the rank's; 109 and 110 differ in the third byte.
  EXPECT_EQ(report.findings.at(0).offset.value() % 64, 9 * 4 + 2u);
}

}  // namespace
}  // namespace dsckpt
