// Swap files of an optimizer on NVMe. optimizer_utils.py writes each flat tensor of a rank raw, and
// pads it to a multiple of 1024 bytes for each thread. engine.py copies the files beside the
// shards.
#include <gtest/gtest.h>

#include "support/zero_checkpoint.h"

namespace dsckpt {
namespace {

using nlohmann::ordered_json;
using test::ZeroCheckpoint;
using Texts = std::vector<std::string>;

std::string swap_name(int64_t rank, const std::string& id) {
  return "offloaded_tensors/rank0" + std::to_string(rank) + "/" + id + ".tensor.swp";
}

ordered_json swapped(const std::string& id) {
  return {{"tensor", {0}}, {"attributes", {{"ds_id", id}}}};
}

// Two ranks, whose first sub-group is swapped: four elements of weight each, parameter 0.
class VerifyOffloaded : public testing::Test {
 protected:
  VerifyOffloaded() {
    checkpoint_.make_stage_3(2);
    for (const int64_t rank : {0, 1}) {
      checkpoint_.optim(rank)["fp32_flat_groups"][0] = swapped("0_0");
      for (const std::string key : {"exp_avg", "exp_avg_sq"}) {
        state(rank)[key] = swapped(key + "-0_0");
      }
      for (const char* id : {"0_0", "exp_avg-0_0", "exp_avg_sq-0_0"}) {
        checkpoint_.raw[swap_name(rank, id)] = std::string(1024, '\0');
      }
    }
  }

  ordered_json& state(int64_t rank) {
    return checkpoint_.optim(rank)["optimizer_state_dict"]["state"]["0"];
  }
  void configure(const ordered_json& ds_config) {
    for (const int64_t rank : {0, 1}) {
      checkpoint_.files[ZeroCheckpoint::optim_name(rank)]["ds_config"] = ds_config;
    }
  }
  // Makes the masters of rank 1 as long.
  void resize(size_t bytes) { checkpoint_.raw[swap_name(1, "0_0")].resize(bytes); }

  ZeroCheckpoint checkpoint_;
};

TEST_F(VerifyOffloaded, NothingIsWrongWithFilesWithOrWithoutPadding) {
  EXPECT_EQ(checkpoint_.findings(), Texts());
  resize(16);
  const VerifyReport report = checkpoint_.verify();
  EXPECT_EQ(test::texts_of(report), Texts());
  EXPECT_EQ(report.files, 10u);
}

TEST_F(VerifyOffloaded, AFileThatIsShorterThanItsElementsIsWrong) {
  resize(15);
  const VerifyReport report = checkpoint_.verify();
  EXPECT_EQ(test::texts_of(report),
            (Texts{"layout " + swap_name(1, "0_0") +
                   ": has 15 bytes, needs 16 for the 4 elements of fp32_flat_groups[0]"}));
  EXPECT_EQ(report.findings.at(0).size, 15u);
  EXPECT_EQ(report.findings.at(0).rank.value().dp, 1u);
}

TEST_F(VerifyOffloaded, AFileThatIsLongerThanItsPaddingIsAnothers) {
  resize(1025);
  EXPECT_EQ(checkpoint_.findings(),
            (Texts{"layout " + swap_name(1, "0_0") +
                   ": has 1025 bytes, needs 16 for the 4 elements of fp32_flat_groups[0] and has "
                   "at most 1024 with its padding: it is of another sub-group or run"}));
}

// swap_tensor/utils.py: every thread writes a multiple of 1024 bytes.
TEST_F(VerifyOffloaded, TheOptimizersFileSaysHowManyThreadsPad) {
  configure({{"aio", {{"intra_op_parallelism", 2}}}});
  resize(2048);
  EXPECT_EQ(checkpoint_.findings(), Texts());
}

TEST_F(VerifyOffloaded, TheOptimizersFileSaysHowLargeElementsAre) {
  configure({{"bf16", {{"bf16_master_weights_and_grads", true}}}});
  resize(8);
  EXPECT_EQ(checkpoint_.findings(), Texts());
}

TEST_F(VerifyOffloaded, AFileThatATensorRefersToIsThere) {
  checkpoint_.raw.erase(swap_name(1, "exp_avg-0_0"));
  const VerifyReport report = checkpoint_.verify();
  EXPECT_EQ(test::texts_of(report),
            (Texts{"missing " + swap_name(1, "exp_avg-0_0") +
                   ": is not there: it has the elements of optimizer_state_dict.state[0].exp_avg "
                   "in " +
                   ZeroCheckpoint::optim_name(1)}));
  EXPECT_EQ(report.findings.at(0).rank.value().dp, 1u);
}

TEST_F(VerifyOffloaded, AFileThatNoTensorRefersToIsLeftOfAnotherRun) {
  checkpoint_.raw[swap_name(2, "0_0")] = "";
  checkpoint_.raw[swap_name(0, "1_1")] = "";
  const std::string why =
      ": no tensor refers to it: it is left over from another run, or from other ranks";
  EXPECT_EQ(checkpoint_.findings(),
            (Texts{"extra " + swap_name(0, "1_1") + why, "extra " + swap_name(2, "0_0") + why}));
}

// Its own swap files could not be told from those of others.
TEST_F(VerifyOffloaded, NoFileIsOneTooManyIfARanksFileIsMissing) {
  checkpoint_.files.erase(ZeroCheckpoint::optim_name(1));
  EXPECT_EQ(checkpoint_.findings(), (Texts{"missing " + ZeroCheckpoint::optim_name(1) +
                                           ": is not there: the checkpoint has 2 ranks"}));
}

TEST_F(VerifyOffloaded, NorIfItCannotBeRead) {
  checkpoint_.files.erase(ZeroCheckpoint::optim_name(1));
  checkpoint_.raw[ZeroCheckpoint::optim_name(1)] = "no zip";
  const Texts findings = checkpoint_.findings();
  ASSERT_EQ(findings.size(), 1u);
  EXPECT_TRUE(findings[0].starts_with("unreadable " + ZeroCheckpoint::optim_name(1)))
      << findings[0];
}

TEST_F(VerifyOffloaded, AStateIsInTheFileOfItsOwnName) {
  state(0)["exp_avg"] = swapped("exp_avg_sq-0_0");
  EXPECT_EQ(checkpoint_.findings(),
            (Texts{"layout " + ZeroCheckpoint::optim_name(0) +
                   " [optimizer_state_dict.state[0].exp_avg]: has the ds_id 'exp_avg_sq-0_0', but "
                   "fp32_flat_groups[0] has '0_0'"}));
}

}  // namespace
}  // namespace dsckpt
