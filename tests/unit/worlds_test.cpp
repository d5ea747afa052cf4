// Checkpoint::world(): what one rank of a split model has, from files that were opened once.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <set>
#include <stdexcept>
#include <string>
#include <vector>

#include "checkpoint/checkpoint.h"
#include "dsckpt/error.h"
#include "support/expect_error.h"

namespace dsckpt {
namespace {
namespace fs = std::filesystem;

Checkpoint opened(InputFiles& inputs, const std::string& name) {
  return Checkpoint::open(inputs, fs::path(DSCKPT_TESTDATA) / name / "ckpt",
                          {.tag = "", .optimizer_states = true});
}

std::vector<std::string> names_of(const std::vector<CheckpointFile>& files) {
  std::vector<std::string> names;
  for (const CheckpointFile& file : files) names.push_back(file.path.filename().string());
  return names;
}

size_t trained(const Checkpoint& checkpoint) {
  const std::vector<Param>& params = checkpoint.params();
  return static_cast<size_t>(std::count_if(params.begin(), params.end(), is_trained));
}

TEST(Worlds, HaveTheSlicesGroupsAndFilesOfTheirRank) {
  InputFiles inputs;
  const Checkpoint whole = opened(inputs, "model_parallel/pp2_tp2_dp2_z1_fp32");
  ASSERT_EQ(whole.facts().mesh.pp, 2u);
  ASSERT_EQ(whole.facts().mesh.tp, 2u);
  const size_t files = inputs.size();
  std::set<std::string> names;
  for (uint32_t mp_rank = 0; mp_rank < 4; ++mp_rank) {
    SCOPED_TRACE(mp_rank);
    const Checkpoint world = whole.world(mp_rank);
    const std::string rank = "mp_rank_0" + std::to_string(mp_rank);
    EXPECT_EQ(names_of(world.files().model), std::vector{rank + "_model_states.pt"});
    EXPECT_EQ(names_of(world.files().optim),
              (std::vector{"zero_pp_rank_0_" + rank + "_optim_states.pt",
                           "zero_pp_rank_1_" + rank + "_optim_states.pt"}));
    EXPECT_EQ(world.files().model.front().archive, whole.files().model[mp_rank].archive);
    EXPECT_EQ(world.facts().mesh.dp, 2u);
    EXPECT_TRUE(world.facts().model_parallel);
    size_t grouped = 0;
    for (const ParamGroup& group : world.groups()) grouped += group.params.size();
    EXPECT_EQ(grouped, trained(world));
    for (const Param& param : world.params()) {
      SCOPED_TRACE(param.name);
      if (is_trained(param)) names.insert(param.name);
      const Param* all = whole.find(param.name);
      ASSERT_NE(all, nullptr);
      ASSERT_EQ(param.states.size(), all->states.size());
      for (const ParamState& state : param.states) {
        EXPECT_EQ(state.value.shape(), param.weight.shape());
      }
      const int64_t ranks = all->cut == nullptr || all->cut->is_whole() ? 1 : 2;
      EXPECT_EQ(param.weight.numel() * ranks, all->weight.numel());
    }
  }
  EXPECT_EQ(names.size(), trained(whole));
  EXPECT_EQ(inputs.size(), files);
  EXPECT_THROW(whole.world(4), std::out_of_range);
}

TEST(Worlds, OfStagesHaveTheLayersOfTheirStage) {
  InputFiles inputs;
  const Checkpoint whole = opened(inputs, "model_parallel/pp2_dp2_z1_fp32");
  const Checkpoint first = whole.world(0);
  const Checkpoint last = whole.world(1);
  EXPECT_NE(first.find("1.fc1.weight"), nullptr);
  EXPECT_EQ(last.find("1.fc1.weight"), nullptr);
  EXPECT_EQ(first.find("4.fc1.weight"), nullptr);
  EXPECT_NE(last.find("4.fc1.weight"), nullptr);
  EXPECT_NE(first.find("tied_modules.embed.weight"), nullptr);
  EXPECT_NE(last.find("tied_modules.embed.weight"), nullptr);
}

TEST(Worlds, OfAModelWithExpertsHaveAllOfThem) {
  InputFiles inputs;
  const Checkpoint whole = opened(inputs, "model_parallel/moe_ep2_dp2_z1_bf16");
  const Checkpoint world = whole.world(0);
  EXPECT_EQ(world.params().size(), whole.params().size());
  EXPECT_EQ(world.files().optim.size(), whole.files().optim.size());
}

TEST(Worlds, ArePartsOfASplitModelOnly) {
  InputFiles inputs;
  const Checkpoint plain = opened(inputs, "checkpoints/z2_bf16_w2");
  EXPECT_FALSE(plain.facts().model_parallel);
  EXPECT_THROW(plain.world(0), UnsupportedError);
  const Checkpoint experts = opened(inputs, "model_parallel/moe_ep2_dp2_z0_fp32");
  EXPECT_EQ(experts.world(0).params().size(), experts.params().size());
}

}  // namespace
}  // namespace dsckpt
