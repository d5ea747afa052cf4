// The keys of each wrapper's state_dict, as DeepSpeed 0.19.8 writes them. The lists were copied by
// hand from its sources; the files in testdata were written by it.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "checkpoint/checkpoint.h"
#include "reshard/model_file.h"
#include "reshard/rank_file.h"
#include "reshard/state_dict_keys.h"

namespace dsckpt {
namespace {

namespace fs = std::filesystem;
using Keys = std::vector<std::string_view>;

Keys keys_of(std::span<const DictKey> table) {
  Keys keys;
  for (const DictKey& key : table) keys.push_back(key.key);
  return keys;
}

// zero/stage_1_and_2.py DeepSpeedZeroOptimizer.state_dict; base_optimizer_state_step under
// elastic_checkpoint. AutoTP adds universal_checkpoint_info at its end, which is carried along.
TEST(StateDictKeys, OfDeepSpeedZeroOptimizer) {
  EXPECT_EQ(
      keys_of(state_dict_keys(EngineWrapper::zero12)),
      (Keys{"loss_scaler", "dynamic_loss_scale", "overflow", "clip_grad", "base_optimizer_state",
            "base_optimizer_state_step", "single_partition_of_fp32_groups", "zero_stage",
            "group_paddings", "param_alignment_paddings", "partition_count", "ds_version",
            "param_slice_mappings"}));
}

// bf16_optimizer.py BF16_Optimizer.state_dict.
TEST(StateDictKeys, OfBf16Optimizer) {
  EXPECT_EQ(keys_of(state_dict_keys(EngineWrapper::bf16_optimizer)),
            (Keys{"clip_grad", "base_optimizer_state", "single_partition_of_fp32_groups",
                  "group_paddings", "partition_count", "ds_version", "param_slice_mappings"}));
}

// zero/stage3.py DeepSpeedZeroOptimizer_Stage3._rigid_state_dict; ds_zero_partition_groups with
// AutoEP.
TEST(StateDictKeys, OfStage3) {
  EXPECT_EQ(keys_of(state_dict_keys(EngineWrapper::zero3)),
            (Keys{"zero_stage", "loss_scaler", "dynamic_loss_scale", "overflow", "partition_count",
                  "ds_zero_partition_groups", "optimizer_state_dict", "fp32_flat_groups"}));
}

// fp16/fused_optimizer.py FP16_Optimizer.state_dict: those of the scale with use_grad_scaling, in
// fp16. The last three of them are there if it is dynamic.
TEST(StateDictKeys, OfFp16Optimizer) {
  EXPECT_EQ(
      keys_of(state_dict_keys(EngineWrapper::fp16_fused)),
      (Keys{"dynamic_loss_scale", "cur_scale", "cur_iter", "last_overflow_iter", "scale_factor",
            "scale_window", "optimizer_state_dict", "fp32_groups_flat", "clip_grad"}));
}

// fp16/unfused_optimizer.py FP16_UnfusedOptimizer.state_dict.
TEST(StateDictKeys, OfFp16UnfusedOptimizer) {
  EXPECT_EQ(keys_of(state_dict_keys(EngineWrapper::fp16_unfused)),
            (Keys{"dynamic_loss_scale", "cur_scale", "cur_iter", "last_overflow_iter",
                  "scale_factor", "scale_window", "optimizer_state_dict", "fp32_groups"}));
}

// torch/optim/optimizer.py Optimizer.state_dict.
TEST(StateDictKeys, OfAPlainOptimizerAreTorchs) {
  EXPECT_EQ(keys_of(state_dict_keys(EngineWrapper::plain)), (Keys{"state", "param_groups"}));
}

// engine.py _save_zero_checkpoint.
TEST(StateDictKeys, OfAnOptimizerStatesFile) {
  EXPECT_EQ(keys_of(optim_file_keys()),
            (Keys{"optimizer_state_dict", "param_shapes", "ds_config", "ds_version"}));
}

Keys keys_of(const pickle::Value& dict) {
  Keys keys;
  for (const auto& item : dict.as_dict().items) keys.push_back(item.first.as_string());
  return keys;
}

// Those of `table` that are in `saved`.
Keys present(const Keys& table, const Keys& saved) {
  Keys keys;
  for (const std::string_view key : table) {
    if (std::find(saved.begin(), saved.end(), key) != saved.end()) keys.push_back(key);
  }
  return keys;
}

// DeepSpeed's own files have these keys, in this order, and no others.
TEST(StateDictKeys, AreThoseOfTheFilesThatDeepSpeedWrote) {
  std::set<EngineWrapper> wrappers;
  for (const char* folder : {"checkpoints", "model_parallel"}) {
    for (const auto& entry : fs::directory_iterator(fs::path(DSCKPT_TESTDATA) / folder)) {
      std::ifstream facts(entry.path() / "case.json");
      if (!facts) continue;
      SCOPED_TRACE(entry.path().filename());
      const std::string shards = nlohmann::json::parse(facts).at("load_dir");
      InputFiles inputs;
      const Checkpoint checkpoint =
          Checkpoint::open(inputs, entry.path() / shards, {.tag = {}, .optimizer_states = true});
      const pickle::Value state = checkpoint.wrapper_state().value;
      if (state.is_none()) continue;
      const EngineWrapper wrapper = checkpoint.facts().optimizer_wrapper;
      Keys saved = keys_of(state);
      std::erase(saved, "universal_checkpoint_info");
      EXPECT_EQ(present(keys_of(state_dict_keys(wrapper)), saved), saved);
      wrappers.insert(wrapper);
      for (const CheckpointFile& file : checkpoint.files().optim) {
        Keys root = keys_of(file.archive->root());
        std::erase(root, "folding");
        EXPECT_EQ(present(keys_of(optim_file_keys()), root), root);
      }
    }
  }
  EXPECT_EQ(wrappers.size(), kEngineWrappers);
}

// --- what a checkpoint offers

CheckpointFacts facts_of(int stage, EngineWrapper wrapper) {
  CheckpointFacts facts;
  facts.zero_stage = stage;
  facts.optimizer_wrapper = wrapper;
  return facts;
}

ReshardTarget target_of(int stage, EngineWrapper wrapper) {
  return {.stage = stage, .wrapper = wrapper};
}

TEST(SourceOffer, MoreRanksOfTheSameKindTakeEverything) {
  const SourceOffer offer =
      source_offer(facts_of(2, EngineWrapper::zero12), target_of(2, EngineWrapper::zero12));
  EXPECT_EQ(offer, (SourceOffer{.starts = false,
                                .keeps_unknown_state = true,
                                .optimizer_as_it_is = false,
                                .optimizer_is_programs = true,
                                .module_as_it_is = true,
                                .fragments_as_they_are = true}));
}

TEST(SourceOffer, OnlyStage3HasPlaceholdersInModule) {
  const auto as_it_is = [](int from, int to) {
    return source_offer(facts_of(from, EngineWrapper::plain), target_of(to, EngineWrapper::plain))
        .module_as_it_is;
  };
  EXPECT_TRUE(as_it_is(0, 1));
  EXPECT_TRUE(as_it_is(1, 2));
  EXPECT_TRUE(as_it_is(3, 3));
  EXPECT_FALSE(as_it_is(2, 3));
  EXPECT_FALSE(as_it_is(3, 0));
}

TEST(SourceOffer, AnotherPrecisionTakesNoValuesOfParameters) {
  ReshardTarget target = target_of(2, EngineWrapper::zero12);
  target.param_dtype = DType::bfloat16;
  const SourceOffer offer = source_offer(facts_of(2, EngineWrapper::zero12), target);
  EXPECT_FALSE(offer.module_as_it_is);
  EXPECT_FALSE(offer.fragments_as_they_are);
  EXPECT_TRUE(offer.keeps_unknown_state);
}

TEST(SourceOffer, AnotherWrapperOrAUniversalFolderKeepsNothingUnknown) {
  EXPECT_FALSE(
      source_offer(facts_of(1, EngineWrapper::zero12), target_of(1, EngineWrapper::bf16_optimizer))
          .keeps_unknown_state);
  CheckpointFacts universal = facts_of(2, EngineWrapper::zero12);
  universal.run = RunKind::universal;
  EXPECT_FALSE(source_offer(universal, target_of(2, EngineWrapper::zero12)).keeps_unknown_state);
}

TEST(SourceOffer, TheOptimizerOfStage0IsCopiedWithItsLossScale) {
  ReshardTarget target = target_of(0, EngineWrapper::fp16_fused);
  const CheckpointFacts facts = facts_of(0, EngineWrapper::fp16_fused);
  EXPECT_TRUE(source_offer(facts, target).optimizer_as_it_is);
  EXPECT_FALSE(source_offer(facts, target).optimizer_is_programs);
  target.new_loss_scaler = true;
  EXPECT_FALSE(source_offer(facts, target).optimizer_as_it_is);
  EXPECT_FALSE(source_offer(facts_of(0, EngineWrapper::fp16_unfused), target).optimizer_as_it_is);
}

TEST(SourceOffer, ARunFromWeightsKeepsNothingOfATraining) {
  CheckpointFacts facts = facts_of(2, EngineWrapper::zero12);
  facts.values = ValuesFrom::start;
  EXPECT_EQ(source_offer(facts, target_of(2, EngineWrapper::zero12)),
            (SourceOffer{.starts = true, .new_values = true}));
}

// Everything goes on but the copies of the parameters, which a 16-bit wrapper of stage 0 has too.
TEST(SourceOffer, GivenWeightsAreNoReasonToStartAnew) {
  CheckpointFacts facts = facts_of(2, EngineWrapper::zero12);
  facts.values = ValuesFrom::weights;
  EXPECT_EQ(source_offer(facts, target_of(2, EngineWrapper::zero12)),
            (SourceOffer{
                .new_values = true, .keeps_unknown_state = true, .optimizer_is_programs = true}));
  for (const auto& [wrapper, copied] :
       {std::pair(EngineWrapper::plain, true), std::pair(EngineWrapper::fp16_fused, false)}) {
    facts = facts_of(0, wrapper);
    facts.values = ValuesFrom::weights;
    EXPECT_EQ(source_offer(facts, target_of(0, wrapper)).optimizer_as_it_is, copied);
  }
}

// engine.py save_checkpoint: what is the model's, the counters and the schedule are written, the
// program's client_state is not.
TEST(ModelFile, ARunFromWeightsWritesWhatTheEngineLooksFor) {
  for (const char* key : {"module", "optimizer", "lr_scheduler", "global_steps", "dp_world_size",
                          "ds_config", "buffer_names", "param_shapes", "data_sampler"}) {
    EXPECT_TRUE(is_written_at_start(key)) << key;
  }
  for (const char* key : {"client_state", "epoch", "random_state"}) {
    EXPECT_FALSE(is_written_at_start(key)) << key;
  }
}

}  // namespace
}  // namespace dsckpt
