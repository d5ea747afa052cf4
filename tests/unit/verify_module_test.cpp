// `module` against the shapes that a model's file notes: engine.py writes both of the same model.
#include <gtest/gtest.h>

#include "support/zero_checkpoint.h"

namespace dsckpt {
namespace {

using nlohmann::ordered_json;
using test::numbers;
using test::ZeroCheckpoint;
using Texts = std::vector<std::string>;

TEST(VerifyModule, EveryParameterIsInModule) {
  ZeroCheckpoint checkpoint(2);
  checkpoint.model()["module"].erase("bias");
  const VerifyReport report = checkpoint.verify();
  EXPECT_EQ(test::texts_of(report), (Texts{"layout " + ZeroCheckpoint::kModelName +
                                           " [module] bias: is in param_shapes, but not in "
                                           "`module`"}));
  EXPECT_EQ(report.findings.at(0).rank.value().mp, 0u);
}

TEST(VerifyModule, AllThatAreNotAreOneFinding) {
  ZeroCheckpoint checkpoint(2);
  checkpoint.model()["module"] = ordered_json::object();
  EXPECT_EQ(checkpoint.findings(),
            (Texts{"layout " + ZeroCheckpoint::kModelName +
                   " [module] weight: is in param_shapes, but not in `module`; so are 1 more"}));
}

TEST(VerifyModule, ExpertsHaveFilesOfTheirOwn) {
  ZeroCheckpoint checkpoint(2);
  const std::string name = "moe.deepspeed_moe.experts.deepspeed_experts.0.w";
  checkpoint.model()["param_shapes"] = ordered_json::array({{{"weight", {8}}, {name, {4}}}});
  checkpoint.model()["module"].erase("bias");
  for (const std::string& finding : checkpoint.findings()) {
    EXPECT_EQ(finding.find("but not in `module`"), finding.npos) << finding;
  }
}

TEST(VerifyModule, AParameterHasTheShapeThatIsNoted) {
  ZeroCheckpoint checkpoint(2);
  checkpoint.model()["module"]["bias"] = numbers({2, 2}, 18, "bfloat16");
  EXPECT_EQ(checkpoint.findings(), (Texts{"shape " + ZeroCheckpoint::kModelName +
                                          " [param_shapes] bias: is [4], but [2, 2] in `module`"}));
}

TEST(VerifyModule, SoHasAFrozenOne) {
  ZeroCheckpoint checkpoint(2);
  checkpoint.model()["module"]["frozen"] = numbers({3}, 50, "bfloat16");
  checkpoint.model()["frozen_param_shapes"] = {{"frozen", {4}}};
  checkpoint.model()["frozen_param_fragments"] = {{"frozen", numbers({3}, 50, "bfloat16")}};
  const Texts findings = checkpoint.findings();
  ASSERT_FALSE(findings.empty());
  EXPECT_EQ(findings.back(), "shape " + ZeroCheckpoint::kModelName +
                                 " [frozen_param_shapes] frozen: is [4], but [3] in `module`");
}

// The rank's parameters are cut: `module` has their names with tensors of no elements.
TEST(VerifyModule, Stage3HasNamesInTheFileOfEveryRank) {
  ZeroCheckpoint checkpoint;
  checkpoint.make_stage_3(2);
  EXPECT_EQ(checkpoint.findings(), Texts());
  checkpoint.model(1)["module"].erase("bias");
  const Texts findings = checkpoint.findings();
  ASSERT_FALSE(findings.empty());
  EXPECT_EQ(findings.front(), "layout " + ZeroCheckpoint::model_name(1) +
                                  " [module] bias: is in param_shapes, but not in `module`");
}

}  // namespace
}  // namespace dsckpt
