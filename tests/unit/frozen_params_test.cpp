// Parameters that no optimizer owns: how they are found, and where the stages of ZeRO keep them
// (engine.py _get_zero_frozen_param_attributes).
#include "checkpoint/frozen_params.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "support/expect_error.h"
#include "support/hand_made.h"

namespace dsckpt {
namespace {

using Floats = std::vector<float>;

std::vector<std::string> names_of(const FrozenParams& params) {
  std::vector<std::string> names;
  for (const auto& entry : params) names.push_back(entry.first);
  return names;
}

TEST(FrozenParams, KeepTheirOrderAndTheFirstOfAName) {
  FrozenParams params;
  EXPECT_TRUE(params.add("b", TensorSource::zeros(DType::float32, {2})));
  EXPECT_TRUE(params.add("a", TensorSource::zeros(DType::float32, {3})));
  EXPECT_FALSE(params.add("b", TensorSource::zeros(DType::float32, {5})));
  EXPECT_EQ(names_of(params), (std::vector<std::string>{"b", "a"}));
  EXPECT_EQ(params.size(), 2u);
  EXPECT_EQ(params.find("b")->shape(), Shape{2});
}

// Planning was quadratic in frozen parameters, each of which was looked for among all.
TEST(FrozenParams, AreFoundByNameAmongManyWithoutLookingAtTheOthers) {
  constexpr int64_t kCount = 200'000;
  FrozenParams params;
  for (int64_t i = 0; i < kCount; ++i) {
    params.add("layers." + std::to_string(i), TensorSource::zeros(DType::float32, {i}));
  }
  int64_t found = 0;
  for (int64_t i = 0; i < kCount; ++i) {
    const TensorSource* param = params.find("layers." + std::to_string(i));
    found += param != nullptr && param->shape() == Shape{i} ? 1 : 0;
  }
  EXPECT_EQ(found, kCount);
  EXPECT_EQ(params.find("layers.200000"), nullptr);
}

class FrozenFiles : public testing::Test {
 protected:
  void write(const std::string& name, const std::string& json) { made_.write(name, json); }

  const std::vector<Shard>& shards() {
    const TagFolder folder = find_tag_folder(made_.folder());
    shards_ = open_shards(inputs_, folder.shards, folder.path.parent_path());
    return shards_;
  }

  Floats floats(const FrozenParams& params, const std::string& name) const {
    return test::floats_of(inputs_, *params.find(name));
  }

  test::HandMade made_;
  InputFiles inputs_;
  std::vector<Shard> shards_;
};

TEST_F(FrozenFiles, OfStage2AreWholeCopiesBesideTheModuleAndThenWhatIsInItAlone) {
  write("mp_rank_00_model_states.pt", R"({
    "module": {"bias": {"tensor": [2], "first": 40}, "trained": {"tensor": [4]},
               "buffer": {"tensor": [1]}, "tied": {"tensor": [3]}, "frozen": {"tensor": [3]}},
    "buffer_names": ["buffer"],
    "param_shapes": [{"trained": [4]}],
    "shared_params": {"tied": "frozen"},
    "frozen_param_shapes": {"frozen": [3]},
    "frozen_param_fragments": {"frozen": {"tensor": [3], "first": 10}}})");
  const ModelStates model(shards().front());
  const FrozenParams frozen = whole_frozen(model);
  EXPECT_EQ(names_of(frozen), (std::vector<std::string>{"frozen", "bias"}));
  EXPECT_EQ(floats(frozen, "frozen"), (Floats{10, 11, 12}));
  EXPECT_EQ(floats(frozen, "bias"), (Floats{40, 41}));
}

// It was frozen after the optimizer was made, whose master goes on.
TEST_F(FrozenFiles, OfWhichTheOptimizerHasAMasterAreNone) {
  write("mp_rank_00_model_states.pt", R"({
    "module": {"late": {"tensor": [3]}},
    "param_shapes": [{"late": [3]}],
    "frozen_param_shapes": {"late": [3]},
    "frozen_param_fragments": {"late": {"tensor": [3]}}})");
  const ModelStates model(shards().front());
  EXPECT_EQ(whole_frozen(model).size(), 0u);
}

TEST_F(FrozenFiles, OfOtherShapesThanTheFileSaysAreRefused) {
  write("mp_rank_00_model_states.pt", R"({
    "module": {}, "param_shapes": [{}], "frozen_param_shapes": {"frozen": [4]},
    "frozen_param_fragments": {"frozen": {"tensor": [3]}}})");
  const ModelStates model(shards().front());
  EXPECT_ERROR(whole_frozen(model), InconsistentError, "another shape in frozen_param_shapes");
}

// Five elements on two ranks: pieces of three, the last element of rank 1's is padding.
constexpr const char* kRank0 = R"({
  "module": {"frozen": {"tensor": [0]}}, "param_shapes": [{}],
  "frozen_param_shapes": {"frozen": [5, 1]},
  "frozen_param_fragments": {"frozen": {"tensor": [3], "first": 7}}})";

TEST_F(FrozenFiles, OfStage3ArePutTogetherFromThePiecesOfAllRanks) {
  write("zero_pp_rank_0_mp_rank_00_model_states.pt", kRank0);
  write("zero_pp_rank_1_mp_rank_00_model_states.pt", R"({
    "module": {"frozen": {"tensor": [0]}}, "param_shapes": [{}],
    "frozen_param_shapes": {"frozen": [5, 1]},
    "frozen_param_fragments": {"frozen": {"tensor": [3], "first": 30}}})");
  const RankModels models(shards());
  const FrozenParams frozen = cut_frozen(models.ranks());
  EXPECT_EQ(frozen.find("frozen")->shape(), (Shape{5, 1}));
  EXPECT_EQ(floats(frozen, "frozen"), (Floats{7, 8, 9, 30, 31}));
}

TEST_F(FrozenFiles, OfStage3InPiecesOfAnotherLengthAreRefused) {
  write("zero_pp_rank_0_mp_rank_00_model_states.pt", kRank0);
  write("zero_pp_rank_1_mp_rank_00_model_states.pt", R"({
    "module": {"frozen": {"tensor": [0]}}, "param_shapes": [{}],
    "frozen_param_shapes": {"frozen": [5, 1]},
    "frozen_param_fragments": {"frozen": {"tensor": [2], "first": 30}}})");
  const RankModels models(shards());
  EXPECT_ERROR(cut_frozen(models.ranks()), InconsistentError,
               "has 2 elements, a rank's piece is 3");
}

}  // namespace
}  // namespace dsckpt
