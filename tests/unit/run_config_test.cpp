// The values that readers take from a saved configuration, however odd it is. DeepSpeed saves any
// that the program gave it (engine.py _common_checkpoint_state, ds_config=self.config).
#include "deepspeed/run_config.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>

#include "checkpoint/checkpoint.h"
#include "deepspeed/config_pickle.h"
#include "support/hand_made.h"

namespace dsckpt {
namespace {

using nlohmann::ordered_json;
using pickle::Document;
using pickle::Value;

// A configuration that both files have.
RunConfig config_of(const char* json) {
  Document document;
  const Value config = pickle_of(document, ordered_json::parse(json));
  return run_config(config, config);
}

TEST(RunConfig, HasWhatTheFilesSay) {
  const RunConfig config = config_of(R"({
    "bf16": {"enabled": true, "bf16_master_weights_and_grads": true},
    "zero_optimization": {"stage": 3, "round_robin_gradients": true,
                          "offload_optimizer": {"device": "nvme"}},
    "use_data_before_expert_parallelism": true, "optimizer": {"type": "AdamW"},
    "gradient_clipping": 1, "aio": {"intra_op_parallelism": 4, "thread_count": 2},
    "checkpoint": {"use_node_local_storage": true}})");
  EXPECT_TRUE(config.saved);
  EXPECT_TRUE(config.bf16);
  EXPECT_TRUE(config.round_robin_gradients);
  EXPECT_TRUE(config.may_be_round_robin());
  EXPECT_EQ(config.data_before_expert_parallelism, true);
  EXPECT_EQ(config.optimizer_type, "AdamW");
  EXPECT_EQ(config.gradient_clipping, 1.0);
  EXPECT_EQ(config.offload, (OffloadConfig{true, DType::bfloat16, 4, true}));
  ASSERT_TRUE(config.engine);
  EXPECT_EQ(config.engine->zero_stage, 3);
}

TEST(RunConfig, OfAnEmptyDictHasDeepSpeedsDefaults) {
  const RunConfig config = config_of("{}");
  EXPECT_TRUE(config.saved);
  EXPECT_FALSE(config.may_be_round_robin());
  EXPECT_EQ(config.data_before_expert_parallelism, false);
  EXPECT_EQ(config.optimizer_type, std::nullopt);
  EXPECT_EQ(config.gradient_clipping, std::nullopt);
  EXPECT_EQ(config.offload, OffloadConfig());
  EXPECT_EQ(config.engine, EngineConfig());
}

// Then nothing speaks against round_robin_gradients, and nothing is known of experts.
TEST(RunConfig, OfWhatIsNoDictIsNotSaved) {
  for (const char* json : {"null", R"("configs/ds.json")", "[1]", "5", "true"}) {
    SCOPED_TRACE(json);
    EXPECT_EQ(config_of(json), RunConfig());
    EXPECT_TRUE(config_of(json).may_be_round_robin());
  }
}

TEST(RunConfig, TakesAutoAndWrongTypesForAbsent) {
  const RunConfig config = config_of(R"({
    "bf16": {"enabled": "auto", "bf16_master_weights_and_grads": 1},
    "fp16": {"fp16_master_weights_and_grads": "true"},
    "zero_optimization": {"round_robin_gradients": "auto", "offload_optimizer": {"device": 5}},
    "use_data_before_expert_parallelism": 1, "optimizer": {"type": ["Adam"]},
    "gradient_clipping": "auto", "aio": {"intra_op_parallelism": "auto"},
    "checkpoint": {"use_node_local_storage": "yes"}})");
  EXPECT_TRUE(config.saved);
  EXPECT_FALSE(config.bf16);
  EXPECT_FALSE(config.may_be_round_robin());
  EXPECT_EQ(config.data_before_expert_parallelism, false);
  EXPECT_EQ(config.optimizer_type, std::nullopt);
  EXPECT_EQ(config.gradient_clipping, std::nullopt);
  EXPECT_EQ(config.offload, OffloadConfig());
}

TEST(RunConfig, TakesSectionsThatAreNoDictsForAbsent) {
  for (const char* section : {"null", "true", "3", R"("auto")", "[]"}) {
    SCOPED_TRACE(section);
    std::string json = R"({"use_data_before_expert_parallelism": true)";
    for (const char* key :
         {"bf16", "fp16", "zero_optimization", "optimizer", "aio", "checkpoint"}) {
      json += std::string(", \"") + key + "\": " + section;
    }
    RunConfig expected;
    expected.saved = true;
    expected.data_before_expert_parallelism = true;
    if (std::string_view(section) == "null") expected.zero_stage = 0;
    RunConfig config = config_of((json + "}").c_str());
    config.engine.reset();
    EXPECT_EQ(config, expected);
  }
}

TEST(RunConfig, HasNoEngineIfAnyPartIsNotUnderstood) {
  const RunConfig config =
      config_of(R"({"zero_optimization": {"stage": "two", "round_robin_gradients": true},
                    "fp16": {"enabled": true, "hysteresis": 5}})");
  EXPECT_FALSE(config.engine);
  EXPECT_TRUE(config.round_robin_gradients);
}

TEST(RunConfig, CountsTheThreadsThatSwapFilesArePaddedFor) {
  const auto threads = [](const std::string& aio) {
    return config_of((R"({"aio": )" + aio + "}").c_str()).offload.aio_threads;
  };
  EXPECT_EQ(threads(R"({"thread_count": 2})"), 2u);
  EXPECT_EQ(threads(R"({"intra_op_parallelism": 2.0, "thread_count": 3})"), 3u);
  EXPECT_EQ(threads(R"({"intra_op_parallelism": 0, "thread_count": 3})"), 1u);
  EXPECT_EQ(threads(R"({"intra_op_parallelism": 65536})"), 65536u);
  EXPECT_EQ(threads(R"({"intra_op_parallelism": 65537})"), 1u);
}

TEST(RunConfig, OfSwapFilesIsWhatTheOptimizersFileSays) {
  Document document;
  const auto pickled = [&](const char* json) {
    return pickle_of(document, ordered_json::parse(json));
  };
  const Value nvme = pickled(R"({"zero_optimization": {"round_robin_gradients": true,
                                        "offload_optimizer": {"device": "nvme"}}})");
  EXPECT_FALSE(run_config(nvme, {}).offload.nvme);
  const RunConfig config = run_config({}, nvme);
  EXPECT_TRUE(config.offload.nvme);
  EXPECT_FALSE(config.saved);
  EXPECT_FALSE(config.round_robin_gradients);
}

// Stage 0 in fp32: the smallest checkpoint there is.
TEST(RunConfig, NeverStopsAReader) {
  for (const char* config :
       {R"("ds.json")", "null", R"({"zero_optimization": "auto", "bf16": [1], "fp16": 3})",
        R"({"optimizer": {"type": "Lion"}, "gradient_clipping": {"a": 1}})"}) {
    SCOPED_TRACE(config);
    test::HandMade made;
    made.write("mp_rank_00_model_states.pt",
               R"({"module": {"w": {"tensor": [2]}}, "ds_config": )" + std::string(config) + "}");
    InputFiles inputs;
    const Checkpoint checkpoint = Checkpoint::open(inputs, made.folder());
    EXPECT_EQ(checkpoint.params().size(), 1u);
    EXPECT_EQ(checkpoint.run_config().saved, config[0] == '{');
  }
}

}  // namespace
}  // namespace dsckpt
