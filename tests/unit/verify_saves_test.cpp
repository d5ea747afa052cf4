// Files of one save have much in common: the majority is right, and each file that differs is one
// finding.
#include <gtest/gtest.h>

#include "support/zero_checkpoint.h"

namespace dsckpt {
namespace {

using test::ZeroCheckpoint;
using Texts = std::vector<std::string>;

nlohmann::ordered_json& step_of(ZeroCheckpoint& checkpoint, int64_t rank) {
  return checkpoint.optim(rank)["base_optimizer_state"]["state"]["0"]["step"];
}

TEST(VerifySaves, TheFileThatDiffersFromMostIsWrong) {
  ZeroCheckpoint checkpoint(3);
  checkpoint.optim(1)["clip_grad"] = 2.5;
  EXPECT_EQ(checkpoint.findings(),
            (Texts{"step " + ZeroCheckpoint::optim_name(1) + " [clip_grad]: is 2.5, but 1 in " +
                   ZeroCheckpoint::display(ZeroCheckpoint::optim_name(0))}));
}

TEST(VerifySaves, TheFirstFileIsWrongToo) {
  ZeroCheckpoint checkpoint(3);
  checkpoint.optim(0)["clip_grad"] = 2.5;
  EXPECT_EQ(checkpoint.findings(),
            (Texts{"step " + ZeroCheckpoint::optim_name(0) + " [clip_grad]: is 2.5, but 1 in " +
                   ZeroCheckpoint::display(ZeroCheckpoint::optim_name(1))}));
}

// The optimizer has made global_steps - skipped_steps steps: 5 - 1.
TEST(VerifySaves, OfTwoThatDifferTheOneWithTheModelsStepsIsRight) {
  for (const int64_t wrong : {0, 1}) {
    ZeroCheckpoint checkpoint(2);
    step_of(checkpoint, wrong) = 5;
    EXPECT_EQ(checkpoint.findings(),
              (Texts{"step " + ZeroCheckpoint::optim_name(wrong) +
                     " [base_optimizer_state.state[0].step]: is 5, but 4 in " +
                     ZeroCheckpoint::display(ZeroCheckpoint::optim_name(1 - wrong))}));
  }
}

TEST(VerifySaves, AMajorityIsRightAgainstTheModelsSteps) {
  ZeroCheckpoint checkpoint(3);
  step_of(checkpoint, 0) = 9;
  step_of(checkpoint, 2) = 9;
  EXPECT_EQ(checkpoint.findings(), (Texts{"step " + ZeroCheckpoint::optim_name(1) +
                                          " [base_optimizer_state.state[0].step]: is 4, but 9 in " +
                                          ZeroCheckpoint::display(ZeroCheckpoint::optim_name(0))}));
}

TEST(VerifySaves, AFileThatDiffersInSeveralFactsIsOneFinding) {
  ZeroCheckpoint checkpoint(3);
  step_of(checkpoint, 1) = 3;
  checkpoint.optim(1)["clip_grad"] = 2.5;
  checkpoint.optim(1)["dynamic_loss_scale"] = true;
  EXPECT_EQ(checkpoint.findings(),
            (Texts{"step " + ZeroCheckpoint::optim_name(1) +
                   " [base_optimizer_state.state[0].step]: is 3, but 4 in " +
                   ZeroCheckpoint::display(ZeroCheckpoint::optim_name(0)) + "; so do 2 more"}));
}

TEST(VerifySaves, AFactMayBeMissingOrBeInOneFileOnly) {
  ZeroCheckpoint without(3);
  without.optim(1).erase("loss_scaler");
  EXPECT_EQ(without.findings(), (Texts{"step " + ZeroCheckpoint::optim_name(1) +
                                       " [loss_scaler]: is missing, but is in " +
                                       ZeroCheckpoint::display(ZeroCheckpoint::optim_name(0))}));
  ZeroCheckpoint with(3);
  for (const int64_t rank : {0, 2}) with.optim(rank).erase("loss_scaler");
  EXPECT_EQ(with.findings(),
            (Texts{"step " + ZeroCheckpoint::optim_name(1) + " [loss_scaler]: is not in " +
                   ZeroCheckpoint::display(ZeroCheckpoint::optim_name(0))}));
}

TEST(VerifySaves, DictsAreComparedAsAWhole) {
  ZeroCheckpoint checkpoint(3);
  checkpoint.optim(2)["base_optimizer_state"]["param_groups"][0]["lr"] = 0.004;
  EXPECT_EQ(checkpoint.findings(),
            (Texts{"step " + ZeroCheckpoint::optim_name(2) +
                   " [base_optimizer_state.param_groups]: differs from that in " +
                   ZeroCheckpoint::display(ZeroCheckpoint::optim_name(0))}));
}

TEST(VerifySaves, TextsAreCompared) {
  ZeroCheckpoint checkpoint(3);
  checkpoint.optim(1)["ds_version"] = "0.15.0";
  EXPECT_EQ(checkpoint.findings(), (Texts{"step " + ZeroCheckpoint::optim_name(1) +
                                          " [ds_version]: differs from that in " +
                                          ZeroCheckpoint::display(ZeroCheckpoint::optim_name(0))}));
}

TEST(VerifySaves, FilesOfAnotherStageAreALayoutOfTheirOwn) {
  ZeroCheckpoint checkpoint(3);
  checkpoint.optim(1)["zero_stage"] = 2;
  EXPECT_EQ(checkpoint.findings(),
            (Texts{"layout " + ZeroCheckpoint::optim_name(1) + " [zero_stage]: is 2, but 1 in " +
                   ZeroCheckpoint::display(ZeroCheckpoint::optim_name(0))}));
}

}  // namespace
}  // namespace dsckpt
