// The files of ranks that must be there, and those that cannot be. engine.py _get_ckpt_name and
// _get_zero_ckpt_name give every rank one file.
#include <gtest/gtest.h>

#include <filesystem>

#include "support/zero_checkpoint.h"

namespace dsckpt {
namespace {

using test::ZeroCheckpoint;
using Texts = std::vector<std::string>;

TEST(VerifyRanks, NothingIsWrongWithACheckpointOfOneTwoOrFourRanks) {
  for (const int64_t ranks : {1, 2, 4}) EXPECT_EQ(ZeroCheckpoint(ranks).findings(), Texts());
}

TEST(VerifyRanks, EachRankOfTheCountHasAFile) {
  ZeroCheckpoint checkpoint(3);
  checkpoint.files.erase(ZeroCheckpoint::optim_name(1));
  EXPECT_EQ(checkpoint.findings(), (Texts{"missing zero_pp_rank_1_mp_rank_00_optim_states.pt: is "
                                          "not there: the checkpoint has 3 ranks"}));
}

TEST(VerifyRanks, AllRanksOfEachModelParallelRankHaveFiles) {
  ZeroCheckpoint checkpoint(2);
  checkpoint.model()["mp_world_size"] = 2;
  const std::string why = ": is not there: the checkpoint has 4 ranks";
  EXPECT_EQ(checkpoint.findings(),
            (Texts{"missing mp_rank_01_model_states.pt" + why,
                   "missing zero_pp_rank_0_mp_rank_01_optim_states.pt" + why,
                   "missing zero_pp_rank_1_mp_rank_01_optim_states.pt" + why}));
}

TEST(VerifyRanks, AFileThatALargerRunLeftIsOneTooManyAndHasNoVote) {
  ZeroCheckpoint checkpoint(1);
  ZeroCheckpoint larger(4);
  for (const int64_t rank : {1, 2, 3}) {
    checkpoint.files[ZeroCheckpoint::optim_name(rank)] =
        larger.files[ZeroCheckpoint::optim_name(rank)];
  }
  const std::string why =
      ": is one too many: the checkpoint has 1 rank; perhaps an older one of the same tag was "
      "larger";
  EXPECT_EQ(checkpoint.findings(),
            (Texts{"extra zero_pp_rank_1_mp_rank_00_optim_states.pt" + why,
                   "extra zero_pp_rank_2_mp_rank_00_optim_states.pt" + why,
                   "extra zero_pp_rank_3_mp_rank_00_optim_states.pt" + why}));
}

TEST(VerifyRanks, OneFileOfAnotherCountIsOutvoted) {
  ZeroCheckpoint checkpoint(2);
  checkpoint.optim(1)["partition_count"] = {3};
  EXPECT_EQ(
      checkpoint.findings(),
      (Texts{"layout zero_pp_rank_1_mp_rank_00_optim_states.pt "
             "[optimizer_state_dict.partition_count]: gives 3 ranks, the other files give 2"}));
}

TEST(VerifyRanks, TheModelsFileCanBeOutvotedToo) {
  ZeroCheckpoint checkpoint(2);
  checkpoint.model()["dp_world_size"] = 4;
  EXPECT_EQ(checkpoint.findings(), (Texts{"layout mp_rank_00_model_states.pt [dp_world_size]: "
                                          "gives 4 ranks, the other files give 2"}));
}

TEST(VerifyRanks, ThereIsAtLeastOneRank) {
  ZeroCheckpoint checkpoint(2);
  checkpoint.model()["dp_world_size"] = 0;
  const Texts findings = checkpoint.findings();
  ASSERT_EQ(findings.size(), 1u);
  EXPECT_EQ(findings.front().rfind("layout mp_rank_00_model_states.pt", 0), 0u) << findings.front();
  EXPECT_NE(findings.front().find("claims that there are 0 ranks"), std::string::npos);
}

// engine.py: only BF16_Optimizer's files are called bf16_zero_.
TEST(VerifyRanks, OfTwoSpellingsThatOfTheRunsPrecisionCounts) {
  for (const bool bf16 : {false, true}) {
    ZeroCheckpoint checkpoint(2);
    const std::string plain = ZeroCheckpoint::optim_name(1);
    checkpoint.files["bf16_" + plain] = checkpoint.files[plain];
    checkpoint.model()["ds_config"]["bf16"] = {{"enabled", bf16}};
    const std::string other = bf16 ? plain : "bf16_" + plain;
    const std::string right = bf16 ? "bf16_" + plain : plain;
    EXPECT_EQ(checkpoint.findings(),
              (Texts{"extra " + other + ": is a second file of a rank; the other is " + right}));
  }
}

TEST(VerifyRanks, AModelsFileOfARankHasNoPlaceBelowStage3) {
  ZeroCheckpoint checkpoint(2);
  checkpoint.files["zero_pp_rank_0_mp_rank_00_model_states.pt"] = checkpoint.model();
  EXPECT_EQ(
      checkpoint.findings(),
      (Texts{"extra zero_pp_rank_0_mp_rank_00_model_states.pt: does not belong to a checkpoint "
             "of this stage; perhaps it is left over from another one of the same tag"}));
}

// torch.save writes the file's name into the archive.
TEST(VerifyRanks, AFileThatWasRenamedKeepsTheNameOfItsRank) {
  ZeroCheckpoint checkpoint(2);
  checkpoint.write();
  const auto folder = checkpoint.folder();
  std::filesystem::copy_file(folder / ZeroCheckpoint::optim_name(0),
                             folder / ZeroCheckpoint::optim_name(1),
                             std::filesystem::copy_options::overwrite_existing);
  EXPECT_EQ(test::texts_of(checkpoint.verify_written()),
            (Texts{"wrong-rank zero_pp_rank_1_mp_rank_00_optim_states.pt: was saved as "
                   "zero_pp_rank_0_mp_rank_00_optim_states.pt: another file is in its place"}));
}

TEST(VerifyRanks, AFindingNamesTheRank) {
  ZeroCheckpoint checkpoint(3);
  checkpoint.files.erase(ZeroCheckpoint::optim_name(2));
  const VerifyReport report = checkpoint.verify();
  ASSERT_EQ(report.findings.size(), 1u);
  EXPECT_EQ(report.findings[0].rank->dp, 2u);
  EXPECT_EQ(report.findings[0].rank->mp, 0u);
}

}  // namespace
}  // namespace dsckpt
