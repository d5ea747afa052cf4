// Universal checkpoints: ds_to_universal.py writes a folder for each parameter, with a file for its
// master and each state. The values of the optimizer's wrapper go into zero/optimizer_state.pt.
#include <gtest/gtest.h>

#include "support/zero_checkpoint.h"

namespace dsckpt {
namespace {

using nlohmann::ordered_json;
using test::numbers;
using test::ZeroCheckpoint;
using Texts = std::vector<std::string>;

// weight [8], bias [4] and gain [4], stepped four times.
class VerifyUniversal : public testing::Test {
 protected:
  VerifyUniversal() : checkpoint_(1) {
    checkpoint_.files.erase(ZeroCheckpoint::optim_name(0));
    checkpoint_.model()["param_shapes"][0]["gain"] = {4};
    checkpoint_.model()["module"]["gain"] = numbers({4}, 22, "bfloat16");
    file("optimizer_state") = {{"zero_stage", 1},
                               {"optimizer_state_dict", {{"param_groups", ordered_json::array()}}}};
    for (const auto& [name, shape] : shapes()) {
      for (const char* key : {"exp_avg", "exp_avg_sq"}) {
        file(name + "/" + key) = {{"param", numbers(shape, 100)}};
      }
      file(name + "/step") = 4;
    }
    file("weight/fp32") = {{"param", numbers({8}, 10)}};
    file("bias/fp32") = {{"param", numbers({4}, 18)}};
    file("gain/fp32") = {{"param", numbers({4}, 22)}};
  }

  static std::map<std::string, std::vector<int64_t>> shapes() {
    return {{"weight", {8}}, {"bias", {4}}, {"gain", {4}}};
  }
  ordered_json& file(const std::string& name) { return checkpoint_.files["zero/" + name + ".pt"]; }
  void remove(const std::string& name) { checkpoint_.files.erase("zero/" + name + ".pt"); }
  Texts findings() { return checkpoint_.findings(); }

  ZeroCheckpoint checkpoint_;
};

TEST_F(VerifyUniversal, NothingIsWrongWithAWholeOne) {
  const VerifyReport report = checkpoint_.verify();
  EXPECT_EQ(report.form, "universal");
  EXPECT_EQ(test::texts_of(report), Texts());
}

TEST_F(VerifyUniversal, TheLoaderNeedsTheWrappersFile) {
  remove("optimizer_state");
  EXPECT_EQ(findings(), (Texts{"missing zero/optimizer_state.pt: is not there: the loader takes "
                               "the hyper-parameters from it"}));
}

// Also if most of them have not.
TEST_F(VerifyUniversal, EveryParameterHasItsValue) {
  remove("bias/fp32");
  remove("gain/fp32");
  EXPECT_EQ(findings(),
            (Texts{"missing zero/bias/fp32.pt bias: is not there: it is the parameter's value",
                   "missing zero/gain/fp32.pt gain: is not there: it is the parameter's value"}));
}

TEST_F(VerifyUniversal, AStateThatMostHaveIsMissing) {
  remove("bias/exp_avg");
  EXPECT_EQ(findings(), (Texts{"missing zero/bias/exp_avg.pt bias: is not there, but other "
                               "parameters of the group have it"}));
}

TEST_F(VerifyUniversal, OfAFolderThatIsNotThereEveryFileIsMissing) {
  for (const char* key : {"fp32", "exp_avg", "exp_avg_sq", "step"}) {
    remove(std::string("gain/") + key);
  }
  const std::string why = " gain: is not there, but other parameters of the group have it";
  EXPECT_EQ(findings(),
            (Texts{"missing zero/gain/exp_avg.pt" + why, "missing zero/gain/exp_avg_sq.pt" + why,
                   "missing zero/gain/fp32.pt gain: is not there: it is the parameter's value",
                   "missing zero/gain/step.pt" + why}));
}

TEST_F(VerifyUniversal, AStateThatFewHaveIsOneTooMany) {
  file("bias/max_exp_avg_sq") = {{"param", numbers({4}, 0)}};
  EXPECT_EQ(findings(), (Texts{"extra zero/bias/max_exp_avg_sq.pt bias: other parameters of the "
                               "group have no such state"}));
}

// Every group may have an optimizer of its own.
TEST_F(VerifyUniversal, ParametersAreComparedWithThoseOfTheirGroup) {
  ordered_json& groups = checkpoint_.model()["param_shapes"];
  groups = ordered_json::array({{{"weight", {8}}}, {{"bias", {4}}, {"gain", {4}}}});
  remove("weight/exp_avg_sq");
  EXPECT_EQ(findings(), Texts());
}

TEST_F(VerifyUniversal, AParameterOfAnotherModelIsOneTooMany) {
  file("head/fp32") = {{"param", numbers({4}, 0)}};
  EXPECT_EQ(findings(), (Texts{"extra zero/head/fp32.pt head: the model has no such parameter"}));
}

TEST_F(VerifyUniversal, ValuesHaveTheShapeOfTheParameter) {
  file("bias/exp_avg") = {{"param", numbers({3}, 0)}};
  EXPECT_EQ(findings(),
            (Texts{"shape zero/bias/exp_avg.pt bias: is [3], but [4] in param_shapes"}));
}

// merge_tp_slices takes the padding off and says so; the loader fills up with zeros.
TEST_F(VerifyUniversal, VocabulariesAreWithoutTheirPadding) {
  for (const char* key : {"fp32", "exp_avg", "exp_avg_sq"}) {
    file(std::string("bias/") + key) = {{"param", numbers({3}, 18)}, {"vocab_tensor", true}};
  }
  checkpoint_.model()["module"]["bias"] = {
      {"tensor", {4}}, {"values", {18, 19, 20, 0}}, {"dtype", "bfloat16"}};
  EXPECT_EQ(findings(), Texts());
}

TEST_F(VerifyUniversal, StatesOfAVocabularyAreAsLargeAsItsMaster) {
  file("bias/exp_avg") = {{"param", numbers({3}, 18)}, {"vocab_tensor", true}};
  EXPECT_EQ(findings(), (Texts{"shape zero/bias/exp_avg.pt bias: is [3], but [4] in fp32.pt"}));
}

// stage3.py loads flat tensors, stage_1_and_2.py those of the parameter's shape.
TEST_F(VerifyUniversal, ValuesMayBeFlatAtStage3Only) {
  checkpoint_.model()["param_shapes"][0]["weight"] = {2, 4};
  checkpoint_.model()["module"]["weight"] = numbers({2, 4}, 10, "bfloat16");
  const std::string why = ".pt weight: is [8], but [2, 4] in param_shapes";
  EXPECT_EQ(findings(),
            (Texts{"shape zero/weight/exp_avg" + why, "shape zero/weight/exp_avg_sq" + why,
                   "shape zero/weight/fp32" + why}));
  checkpoint_.files[ZeroCheckpoint::model_name(0)] = checkpoint_.model();
  checkpoint_.files.erase(ZeroCheckpoint::kModelName);
  file("optimizer_state")["zero_stage"] = 3;
  EXPECT_EQ(findings(), Texts());
}

// It is an element of a flat tensor.
TEST_F(VerifyUniversal, AScalarMayHaveOneDimension) {
  checkpoint_.model()["param_shapes"][0]["gain"] = ordered_json::array();
  checkpoint_.model()["module"]["gain"] = numbers({}, 22, "bfloat16");
  for (const char* key : {"fp32", "exp_avg", "exp_avg_sq"}) {
    file(std::string("gain/") + key) = {{"param", numbers({1}, 22)}};
  }
  EXPECT_EQ(findings(), Texts());
}

// The files of tensor-parallel ranks note the shapes of their slices.
TEST_F(VerifyUniversal, ValuesAreWholeWhereTheModelIsSliced) {
  checkpoint_.model()["mp_world_size"] = 2;
  checkpoint_.files["mp_rank_01_model_states.pt"] = checkpoint_.model();
  for (const char* key : {"fp32", "exp_avg", "exp_avg_sq"}) {
    file(std::string("weight/") + key) = {{"param", numbers({16}, 10)}, {"cat_dim", 0}};
  }
  for (const std::string& finding : findings()) {
    EXPECT_FALSE(finding.starts_with("shape ")) << finding;
  }
}

TEST_F(VerifyUniversal, AFileHasATensor) {
  file("bias/exp_avg") = {{"param", 3}};
  EXPECT_EQ(findings(), (Texts{"layout zero/bias/exp_avg.pt bias: has no tensor"}));
}

TEST_F(VerifyUniversal, AllParametersWereSteppedEquallyOften) {
  file("bias/step") = 3;
  EXPECT_EQ(findings(), (Texts{"step zero/bias/step.pt bias: is 3, but 4 of other parameters"}));
  file("bias/step") = {
      {"tensor", ordered_json::array()}, {"values", {1e300}}, {"dtype", "float64"}};
  EXPECT_EQ(findings(), (Texts{"step zero/bias/step.pt bias: is 1e+300, but 4 of other "
                               "parameters"}));
  file("bias/step") = {{"tensor", ordered_json::array()}, {"values", {4.5}}, {"dtype", "float32"}};
  EXPECT_EQ(findings(), (Texts{"step zero/bias/step.pt bias: is 4.5, but 4 of other parameters"}));
}

TEST_F(VerifyUniversal, AStepMayBeATensorOfOneNumber) {
  file("bias/step") = numbers({}, 4);
  EXPECT_EQ(findings(), Texts());
  file("bias/step") = numbers({}, 5);
  EXPECT_EQ(findings(), (Texts{"step zero/bias/step.pt bias: is 5, but 4 of other parameters"}));
}

TEST_F(VerifyUniversal, AStepIsANumber) {
  file("bias/step") = "four";
  EXPECT_EQ(findings(), (Texts{"layout zero/bias/step.pt bias: is not a number"}));
}

}  // namespace
}  // namespace dsckpt
