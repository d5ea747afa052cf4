// Values that others determine: weights are the roundings of their masters, copies are equal.
#include <gtest/gtest.h>

#include "support/zero_checkpoint.h"

namespace dsckpt {
namespace {

using nlohmann::ordered_json;
using test::numbers;
using test::ZeroCheckpoint;
using Texts = std::vector<std::string>;

bool begins(const std::string& text, const std::string& beginning) {
  return text.rfind(beginning, 0) == 0;
}

TEST(VerifyRounding, TheFirstElementThatDiffersIsNamed) {
  ZeroCheckpoint checkpoint(2);
  checkpoint.model()["module"]["bias"] = numbers({4}, 19, "bfloat16");
  const Texts findings = checkpoint.findings();
  ASSERT_EQ(findings.size(), 1u);
  EXPECT_TRUE(begins(findings[0], std::string("rounding ") + ZeroCheckpoint::kModelName))
      << findings[0];
  EXPECT_NE(findings[0].find(" bias: element 0 is 19, not the rounding of its master 18 at byte "),
            std::string::npos)
      << findings[0];
  EXPECT_TRUE(findings[0].ends_with(ZeroCheckpoint::display(ZeroCheckpoint::optim_name(1))))
      << findings[0];
}

// The element lies in the part of the second rank: 16, 17 are its first two.
TEST(VerifyRounding, AMasterIsFoundAcrossTheRanks) {
  ZeroCheckpoint checkpoint(2);
  checkpoint.optim(1)["single_partition_of_fp32_groups"] = ordered_json::array({numbers({6}, 17)});
  checkpoint.model()["module"]["bias"] = numbers({4}, 19, "bfloat16");
  const Texts findings = checkpoint.findings();
  ASSERT_EQ(findings.size(), 1u);
  EXPECT_NE(findings[0].find(" weight: element 6 is 16, not the rounding of its master 17 at"),
            std::string::npos)
      << findings[0];
}

// Half precision has 11 bits: 2049 lies between 2048 and 2050 and becomes the even one, 2048.
TEST(VerifyRounding, RoundsToNearestEven) {
  ZeroCheckpoint right(2, 2038, "float16");
  EXPECT_EQ(right.findings(), Texts());
  ZeroCheckpoint wrong(2, 2038, "float16");
  wrong.optim(1)["single_partition_of_fp32_groups"] = ordered_json::array({numbers({6}, 2046)});
  const Texts findings = wrong.findings();
  ASSERT_EQ(findings.size(), 2u);
  EXPECT_NE(findings[1].find("bias: element 0 is 2046, not the rounding of its master 2048"),
            std::string::npos)
      << findings[1];
}

TEST(VerifyRounding, WeightsOfFloat32EqualTheirMasters) {
  ZeroCheckpoint right(2, 10, "float32");
  EXPECT_EQ(right.findings(), Texts());
  ZeroCheckpoint wrong(2, 10, "float32");
  wrong.model()["module"]["weight"] = numbers({8}, 11);
  EXPECT_EQ(wrong.findings().size(), 1u);
}

// Six parameters of two elements: three a rank.
TEST(VerifyRounding, AFileOfAnotherSaveIsOneFinding) {
  ZeroCheckpoint checkpoint(2);
  ordered_json shapes = ordered_json::object();
  ordered_json module = ordered_json::object();
  for (int64_t i = 0; i < 6; ++i) {
    shapes["p" + std::to_string(i) + ".w"] = {2};
    module["p" + std::to_string(i) + ".w"] = numbers({2}, 10 + 2 * i, "bfloat16");
  }
  checkpoint.model()["param_shapes"] = ordered_json::array({shapes});
  checkpoint.model()["module"] = module;
  EXPECT_EQ(checkpoint.findings(), Texts());
  checkpoint.optim(1)["single_partition_of_fp32_groups"] = ordered_json::array({numbers({6}, 30)});
  EXPECT_EQ(checkpoint.findings(),
            (Texts{"rounding " + ZeroCheckpoint::optim_name(1) +
                   " p3.w: 3 of 3 weights are not the roundings of their masters: this rank's "
                   "file is from another save"}));
}

TEST(VerifyReplicas, TiedParametersAreEqual) {
  ZeroCheckpoint checkpoint(2);
  checkpoint.model()["shared_params"] = {{"head", "weight"}};
  checkpoint.model()["module"]["head"] = numbers({8}, 10, "bfloat16");
  EXPECT_EQ(checkpoint.findings(), Texts());
  checkpoint.model()["module"]["head"] = numbers({8}, 12, "bfloat16");
  const Texts findings = checkpoint.findings();
  ASSERT_EQ(findings.size(), 1u);
  EXPECT_TRUE(begins(findings[0], std::string("replica ") + ZeroCheckpoint::kModelName))
      << findings[0];
  EXPECT_NE(findings[0].find(" head: differs from its other copy in "), std::string::npos)
      << findings[0];
}

// Stage 2 writes frozen parameters twice: into the module and, whole, as fragments.
TEST(VerifyReplicas, FrozenParametersAreEqualInModuleAndFragments) {
  ZeroCheckpoint checkpoint(2);
  checkpoint.model()["module"]["frozen"] = numbers({3}, 50, "bfloat16");
  checkpoint.model()["frozen_param_shapes"] = {{"frozen", {3}}};
  checkpoint.model()["frozen_param_fragments"] = {{"frozen", numbers({3}, 50, "bfloat16")}};
  EXPECT_EQ(checkpoint.findings(), Texts());
  checkpoint.model()["frozen_param_fragments"] = {{"frozen", numbers({3}, 51, "bfloat16")}};
  const Texts findings = checkpoint.findings();
  ASSERT_EQ(findings.size(), 1u);
  EXPECT_TRUE(begins(findings[0], std::string("replica ") + ZeroCheckpoint::kModelName))
      << findings[0];
}

// Stage 0 of three tensor-parallel ranks. universal_checkpoint_info names what they all hold; no
// two have the same experts, whatever it says.
TEST(VerifyReplicas, TensorParallelRanksAgreeOnWhatIsReplicated) {
  ZeroCheckpoint checkpoint(1);
  checkpoint.files.clear();
  for (int64_t rank = 0; rank < 3; ++rank) {
    const std::string name = "mp_rank_0" + std::to_string(rank) + "_model_states.pt";
    checkpoint.files[name] = {
        {"module",
         {{"norm.weight", numbers({3}, rank == 1 ? 7 : 5)},
          {"qkv.weight", numbers({3}, 10 * rank)},
          {"norm.experts.w", numbers({3}, 10 * rank)}}},
        {"optimizer", ordered_json::object()},
        {"dp_world_size", 1},
        {"mp_world_size", 3},
        {"universal_checkpoint_info", {{"tp_replicated_parameter_patterns", {"norm\\..*"}}}}};
  }
  Texts copies;  // that differ; the reader, which merges slices, has findings of its own
  for (const std::string& finding : checkpoint.findings()) {
    if (finding.find("differs from the copy in ") != std::string::npos) copies.push_back(finding);
  }
  EXPECT_EQ(copies, (Texts{"replica mp_rank_01_model_states.pt [mp_rank_01_model_states/data/0] "
                           "norm.weight: differs from the copy in " +
                           ZeroCheckpoint::display("mp_rank_00_model_states.pt")}));
}

}  // namespace
}  // namespace dsckpt
