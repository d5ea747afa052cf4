// Files beside those of the ranks. pipe/module.py writes one for each layer and tensor-parallel
// rank. engine.py writes one for each expert and, without ZeRO, one for the optimizer of each rank
// of experts.
#include <gtest/gtest.h>

#include <algorithm>

#include "support/zero_checkpoint.h"

namespace dsckpt {
namespace {

using nlohmann::ordered_json;
using test::numbers;
using test::ZeroCheckpoint;
using Texts = std::vector<std::string>;

// A pipeline of one stage and the layers 0 and 2; layer 1 has no parameters.
class VerifyLayers : public testing::Test {
 protected:
  VerifyLayers() : checkpoint_(1) {
    checkpoint_.model()["module"] = nullptr;
    checkpoint_.model()["param_shapes"] = ordered_json::array({{{"0.w", {8}}, {"2.w", {4}}}});
    checkpoint_.files["layer_00-model_states.pt"] = {{"w", numbers({8}, 10, "bfloat16")}};
    checkpoint_.files["layer_02-model_states.pt"] = {{"w", numbers({4}, 18, "bfloat16")}};
  }
  Texts findings() { return checkpoint_.findings(); }

  ZeroCheckpoint checkpoint_;
};

const std::string kNoLayer = ": is not there: the pipeline has such a layer";

TEST_F(VerifyLayers, NothingIsWrongWithAPipeline) {
  EXPECT_EQ(findings(), Texts());
}

TEST_F(VerifyLayers, ALayerWithParametersHasAFile) {
  checkpoint_.files.erase("layer_02-model_states.pt");
  EXPECT_EQ(findings(), (Texts{"missing layer_02-model_states.pt" + kNoLayer}));
}

TEST_F(VerifyLayers, ThatOfNoLayerIsThereIsToldByTheModel) {
  checkpoint_.files.erase("layer_00-model_states.pt");
  checkpoint_.files.erase("layer_02-model_states.pt");
  EXPECT_EQ(findings(), (Texts{"missing layer_00-model_states.pt" + kNoLayer,
                               "missing layer_02-model_states.pt" + kNoLayer}));
  checkpoint_.model()["checkpoint_parallel_dimensions"] = {{"tp_degree", 2}};
  const Texts texts = findings();
  for (const char* name :
       {"layer_00-model_00", "layer_00-model_01", "layer_02-model_00", "layer_02-model_01"}) {
    const std::string text = std::string("missing ") + name + "-model_states.pt" + kNoLayer;
    EXPECT_NE(std::find(texts.begin(), texts.end(), text), texts.end()) << text;
  }
}

TEST_F(VerifyLayers, ALayerHasAFileOfEachTensorParallelRank) {
  for (const char* name : {"layer_00-model_00", "layer_00-model_01", "layer_02-model_00"}) {
    checkpoint_.files[std::string(name) + "-model_states.pt"] =
        checkpoint_.files["layer_02-model_states.pt"];
  }
  checkpoint_.files.erase("layer_00-model_states.pt");
  checkpoint_.files.erase("layer_02-model_states.pt");
  const Texts texts = findings();
  ASSERT_FALSE(texts.empty());
  EXPECT_EQ(texts[0], "missing layer_02-model_01-model_states.pt" + kNoLayer);
}

// Its names say nothing of layers: all of it is tied.
TEST_F(VerifyLayers, APipelineHasAtLeastOneLayer) {
  checkpoint_.files.erase("layer_00-model_states.pt");
  checkpoint_.files.erase("layer_02-model_states.pt");
  checkpoint_.model()["param_shapes"] =
      ordered_json::array({{{"tied_modules.embed.w", {8}}, {"tied_modules.head.w", {4}}}});
  EXPECT_EQ(findings(), (Texts{"missing layer_00-model_states.pt: is not there: the model is a "
                               "pipeline, but there is no file of any layer"}));
}

TEST(VerifyLayersOfNoPipeline, AModelWhoseNamesAreNumbersNeedsNoFilesOfLayers) {
  ZeroCheckpoint checkpoint(1);
  checkpoint.model()["module"] = {{"0.w", numbers({8}, 10, "bfloat16")},
                                  {"2.w", numbers({4}, 18, "bfloat16")}};
  checkpoint.model()["param_shapes"] = ordered_json::array({{{"0.w", {8}}, {"2.w", {4}}}});
  EXPECT_EQ(checkpoint.findings(), Texts());
}

std::string expert_name(int layer, int expert) {
  return "layer_" + std::to_string(layer) + "_expert_" + std::to_string(expert) +
         "_mp_rank_00_model_states.pt";
}

// Stage 0 of four ranks: three dense tensors, a layer with four experts of two tensors each, which
// are spread over `ranks`.
class VerifyExperts : public testing::Test {
 protected:
  explicit VerifyExperts(int64_t ranks = 2) : checkpoint_(1) {
    checkpoint_.files.clear();
    ordered_json owned = ordered_json::array();
    for (int64_t i = 0; i < 3 + 4 / ranks * 2; ++i) owned.push_back(i);
    checkpoint_.files[ZeroCheckpoint::kModelName] = {
        {"module", {{"a", numbers({2}, 0)}, {"b", numbers({2}, 2)}, {"c", numbers({2}, 4)}}},
        {"optimizer", nullptr},
        {"num_experts", {4}},
        {"dp_world_size", 4},
        {"mp_world_size", 1}};
    for (int expert = 0; expert < 4; ++expert) {
      const std::string front = "moe.deepspeed_moe.experts.deepspeed_experts.";
      checkpoint_.files[expert_name(0, expert)] = {
          {front + std::to_string(expert) + ".w", numbers({2}, 10 * expert)},
          {front + std::to_string(expert) + ".b", numbers({2}, 10 * expert)}};
    }
    for (int64_t rank = 0; rank < ranks; ++rank) {
      checkpoint_.files[optim_name(rank)] = {
          {"optimizer",
           {{"state", ordered_json::object()},
            {"param_groups", ordered_json::array({{{"lr", 0.5}, {"params", owned}}})}}}};
    }
  }

  static std::string optim_name(int64_t rank) {
    return "expp_rank_" + std::to_string(rank) + "_mp_rank_00_optim_states.pt";
  }
  Texts findings() { return checkpoint_.findings(); }

  ZeroCheckpoint checkpoint_;
};

TEST_F(VerifyExperts, EachHasAFile) {
  EXPECT_EQ(findings(), Texts());
  checkpoint_.files.erase(expert_name(0, 2));
  EXPECT_EQ(findings(),
            (Texts{"missing " + expert_name(0, 2) + ": is not there: the layer has 4 experts"}));
}

TEST_F(VerifyExperts, OneThatTheModelDoesNotHaveIsOneTooMany) {
  checkpoint_.files[expert_name(0, 4)] = checkpoint_.files[expert_name(0, 3)];
  checkpoint_.files[expert_name(1, 0)] = checkpoint_.files[expert_name(0, 3)];
  EXPECT_EQ(findings(), (Texts{"extra " + expert_name(0, 4) + ": the model has no such expert",
                               "extra " + expert_name(1, 0) + ": the model has no such expert"}));
}

TEST_F(VerifyExperts, TheCountOfAnOptimizersParametersTellsHowManyRanksThereAre) {
  checkpoint_.files.erase(optim_name(1));
  const VerifyReport report = checkpoint_.verify();
  EXPECT_EQ(test::texts_of(report).at(0),
            "missing " + optim_name(1) + ": is not there: the experts are spread over 2 ranks");
  EXPECT_EQ(report.findings.at(0).rank.value().dp, 1u);
}

TEST_F(VerifyExperts, RanksBelowTheLastHaveFiles) {
  checkpoint_.files[optim_name(3)] = checkpoint_.files[optim_name(0)];
  EXPECT_EQ(findings(), (Texts{"missing " + optim_name(2) +
                               ": is not there: the experts are spread over 4 ranks"}));
}

}  // namespace
}  // namespace dsckpt
