// File names as deepspeed/runtime/engine.py makes them: _get_ckpt_name, _get_zero_ckpt_name,
// _get_optimizer_ckpt_name, _get_expert_ckpt_name. pipe/module.py has ckpt_layer_path.
#include "deepspeed/shard_name.h"

#include <gtest/gtest.h>

#include <optional>
#include <string_view>

namespace dsckpt {
namespace {

using Kind = ShardName::Kind;

TEST(ShardName, TakesApartWhatDeepSpeedWrites) {
  EXPECT_EQ(parse_shard_name("mp_rank_00_model_states.pt"),
            (ShardName{.kind = Kind::model_states}));
  EXPECT_EQ(parse_shard_name("mp_rank_13_model_states.pt"),
            (ShardName{.kind = Kind::model_states, .mp_rank = 13}));
  EXPECT_EQ(parse_shard_name("zero_pp_rank_10_mp_rank_02_model_states.pt"),
            (ShardName{.kind = Kind::zero_model_states, .dp_rank = 10, .mp_rank = 2}));
  EXPECT_EQ(parse_shard_name("zero_pp_rank_7_mp_rank_00_optim_states.pt"),
            (ShardName{.kind = Kind::optim_states, .dp_rank = 7}));
  EXPECT_EQ(parse_shard_name("bf16_zero_pp_rank_7_mp_rank_00_optim_states.pt"),
            (ShardName{.kind = Kind::optim_states, .dp_rank = 7, .bf16 = true}));
  EXPECT_EQ(parse_shard_name("zero_pp_rank_7_mp_rank_00optim_states.pt"),
            (ShardName{.kind = Kind::optim_states, .dp_rank = 7, .old_spelling = true}));
  EXPECT_EQ(parse_shard_name("expp_rank_3_mp_rank_01_optim_states.pt"),
            (ShardName{.kind = Kind::expert_optim, .dp_rank = 3, .mp_rank = 1}));
  EXPECT_EQ(parse_shard_name("layer_04-model_states.pt"),
            (ShardName{.kind = Kind::layer, .layer = 4}));
  EXPECT_EQ(parse_shard_name("layer_04-model_01-model_states.pt"),
            (ShardName{.kind = Kind::layer, .mp_rank = 1, .layer = 4}));
  EXPECT_EQ(parse_shard_name("layer_1_expert_12_mp_rank_01_model_states.pt"),
            (ShardName{.kind = Kind::expert, .mp_rank = 1, .layer = 1, .expert = 12}));
}

TEST(ShardName, LeavesOtherFilesAlone) {
  for (const std::string_view name :
       {"", "latest", "model.safetensors", "mp_rank_00_model_states.pt.tmp",
        "mp_rank_model_states.pt", "mp_rank_00_model_states",
        "bf16_zero_pp_rank_0_mp_rank_00_model_states.pt",
        "zero_pp_rank_0_mp_rank_00_optim_states.pt~", "zero_pp_rank_-1_mp_rank_00_optim_states.pt",
        "zero_pp_rank_9999999999_mp_rank_00_optim_states.pt", "layer_-model_states.pt",
        "layer_04-model_x-model_states.pt", "layer_04_model_states.pt"}) {
    EXPECT_EQ(parse_shard_name(name), std::nullopt) << name;
  }
}

TEST(ShardName, GivesTheNameBack) {
  for (const std::string_view name :
       {"mp_rank_00_model_states.pt", "zero_pp_rank_10_mp_rank_02_model_states.pt",
        "bf16_zero_pp_rank_7_mp_rank_00_optim_states.pt",
        "zero_pp_rank_7_mp_rank_00optim_states.pt", "expp_rank_3_mp_rank_01_optim_states.pt"}) {
    EXPECT_EQ(parse_shard_name(name)->file_name(), name);
  }
}

TEST(ShardName, KnowsARankWhateverTheSpelling) {
  const auto name = parse_shard_name("bf16_zero_pp_rank_7_mp_rank_00_optim_states.pt");
  EXPECT_TRUE(name->same_rank(*parse_shard_name("zero_pp_rank_7_mp_rank_00optim_states.pt")));
  EXPECT_FALSE(name->same_rank(*parse_shard_name("zero_pp_rank_6_mp_rank_00_optim_states.pt")));
  EXPECT_FALSE(name->same_rank(*parse_shard_name("zero_pp_rank_7_mp_rank_00_model_states.pt")));
}

}  // namespace
}  // namespace dsckpt
