// The engines that configurations make, against DeepSpeed: what case.json says of the live one.
#include "deepspeed/engine_config.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "checkpoint/checkpoint.h"
#include "dsckpt/error.h"
#include "support/expect_error.h"
#include "support/saved_config.h"

namespace dsckpt {
namespace {

namespace fs = std::filesystem;
using nlohmann::ordered_json;

EngineConfig config_of(const char* json) {
  return engine_config(ordered_json::parse(json));
}

void expect_as_the_engine_was(const test::SavedConfig& one) {
  EXPECT_EQ(one.config.zero_stage, one.facts.at("stage").get<int>());
  EXPECT_EQ(to_string(one.config.precision), one.facts.at("precision").get<std::string>());

  const bool fused = one.class_of("base") == "FusedAdam";
  if (one.facts.at("ds_config").contains("optimizer")) {
    EXPECT_EQ(one.config.uses_fused_adam(), fused);
  } else {
    EXPECT_EQ(one.config.uses_fused_adam(), std::nullopt);
  }
  const EngineWrapper wrapper = wrapper_of(one.config, fused);
  if (one.class_of("wrapper") == one.class_of("base")) {
    EXPECT_EQ(wrapper, EngineWrapper::plain);
  } else {
    EXPECT_EQ(to_string(wrapper), one.class_of("wrapper"));
  }
}

TEST(EngineConfig, TellsTheEngineOfEveryDataParallelCheckpoint) {
  const std::vector<fs::path> cases = test::cases_in("checkpoints");
  ASSERT_GT(cases.size(), 50u);
  for (const fs::path& folder : cases) {
    SCOPED_TRACE(folder.filename());
    const test::SavedConfig one(folder);
    expect_as_the_engine_was(one);
    // The files' readers find the same values.
    InputFiles inputs;
    const CheckpointFacts facts = Checkpoint::open(inputs, one.load_dir).facts();
    EXPECT_EQ(one.config.zero_stage, facts.zero_stage);
    const bool fused = one.class_of("base") == "FusedAdam";
    EXPECT_EQ(wrapper_of(one.config, fused), facts.optimizer_wrapper);
  }
}

TEST(EngineConfig, TellsTheEngineOfEveryModelParallelCheckpoint) {
  const std::vector<fs::path> cases = test::cases_in("model_parallel");
  ASSERT_GT(cases.size(), 20u);
  for (const fs::path& folder : cases) {
    SCOPED_TRACE(folder.filename());
    const test::SavedConfig one(folder);
    expect_as_the_engine_was(one);
    const ordered_json& written = one.facts.at("ds_config");
    EXPECT_EQ(one.config.autotp_size, written.contains("tensor_parallel")
                                          ? written["tensor_parallel"]["autotp_size"].get<int64_t>()
                                          : 0);
  }
}

TEST(EngineConfig, HasDeepSpeedsDefaults) {
  const EngineConfig config = config_of("{}");
  EXPECT_EQ(config, EngineConfig());
  EXPECT_EQ(config.sub_group_size, 1'000'000'000);
  EXPECT_EQ(config.gradient_clipping, 1.0);
  EXPECT_EQ(config.uses_fused_adam(), std::nullopt);
  // null and "auto" are absent, also as whole sections.
  EXPECT_EQ(config_of(R"({"zero_optimization": {"stage": "auto", "offload_optimizer": null},
                          "fp16": "auto", "bf16": {"enabled": "auto"}, "optimizer": null,
                          "train_batch_size": "auto", "gradient_clipping": "auto",
                          "checkpoint": {"writer": null}})"),
            config);
}

TEST(EngineConfig, ReadsEverySetting) {
  const EngineConfig config = config_of(
      R"({"zero_optimization": {"stage": 3.0, "sub_group_size": 1e6, "round_robin_gradients": true,
          "parameter_alignment": true, "compute_grad_norm": false,
          "offload_optimizer": {"device": "nvme"}, "offload_param": {"device": "cpu"}},
          "bf16": {"enabled": true, "bf16_master_weights_and_grads": true,
                   "bf16_optimizer_states": true},
          "fp16": {"enabled": false, "loss_scale": 128, "initial_scale_power": 12,
                   "loss_scale_window": 500.0, "hysteresis": 3, "consecutive_hysteresis": true,
                   "min_loss_scale": 2, "fp16_master_weights_and_grads": false},
          "data_types": {"grad_accum_dtype": "float32", "param_dtype": "bfloat16"},
          "optimizer": {"type": "AdamW", "params": {"torch_adam": true}},
          "checkpoint": {"load_universal": true, "writer": {"type": "FAST"}},
          "tensor_parallel": {"autotp_size": 4}, "gradient_clipping": 0.5,
          "train_batch_size": 24, "train_micro_batch_size_per_gpu": 3,
          "gradient_accumulation_steps": 4})");
  EXPECT_EQ(config.zero_stage, 3);
  EXPECT_EQ(config.sub_group_size, 1'000'000);
  EXPECT_TRUE(config.round_robin_gradients);
  EXPECT_TRUE(config.parameter_alignment);

  EXPECT_FALSE(config.compute_grad_norm);
  EXPECT_EQ(config.offload_optimizer, OffloadDevice::nvme);

  EXPECT_EQ(config.precision, Precision::bf16);
  EXPECT_EQ(config.grad_accum_dtype, Precision::fp32);
  EXPECT_TRUE(config.bf16_master_weights_and_grads);
  EXPECT_TRUE(config.bf16_optimizer_states);
  EXPECT_EQ(config.loss_scale, (LossScaleConfig{128, 12, 500, 3, true, 2}));
  EXPECT_EQ(config.optimizer_type, "adamw");
  EXPECT_TRUE(config.torch_adam);
  EXPECT_TRUE(config.load_universal);
  EXPECT_TRUE(config.checkpoint_writer);
  EXPECT_EQ(config.autotp_size, 4);
  EXPECT_EQ(config.gradient_clipping, 0.5);
  EXPECT_EQ(config.train_batch_size, 24);
  EXPECT_EQ(config.train_micro_batch_size_per_gpu, 3);
  EXPECT_EQ(config.gradient_accumulation_steps, 4);
}

TEST(EngineConfig, KnowsOldSpellings) {
  EXPECT_EQ(config_of(R"({"bfloat16": {"enabled": true}})").precision, Precision::bf16);
  // The new key wins, whatever the old one says.
  EXPECT_EQ(config_of(R"({"bf16": {}, "bfloat16": {"enabled": true}})").precision, Precision::fp32);
  EXPECT_EQ(config_of(R"({"zero_optimization": true})").zero_stage, 1);
  EXPECT_EQ(config_of(R"({"zero_optimization": false})").zero_stage, 0);
  const EngineConfig offloaded =
      config_of(R"({"zero_optimization": {"cpu_offload": true, "cpu_offload_param": true}})");
  EXPECT_EQ(offloaded.offload_optimizer, OffloadDevice::cpu);

  EXPECT_EQ(config_of(R"({"optimizer": {"type": "SGD"}})").optimizer_type, "SGD");
}

TEST(EngineConfig, NamesTheKeyOfAWrongValue) {
  EXPECT_ERROR(config_of(R"({"zero_optimization": {"stage": "two"}})"), UsageError,
               "zero_optimization.stage: is a string");
  EXPECT_ERROR(config_of(R"({"zero_optimization": {"stage": 4}})"), UsageError,
               "zero_optimization.stage: is 4");
  EXPECT_ERROR(config_of(R"({"zero_optimization": 2})"), UsageError,
               "zero_optimization: is a number");
  EXPECT_ERROR(config_of(R"({"zero_optimization": {"sub_group_size": 1.5}})"), UsageError,
               "zero_optimization.sub_group_size: is 1.5, not a whole number");
  EXPECT_ERROR(config_of(R"({"zero_optimization": {"sub_group_size": 1e300}})"), UsageError,
               "zero_optimization.sub_group_size: is 1e+300");
  EXPECT_ERROR(config_of(R"({"zero_optimization": {"sub_group_size": -1}})"), UsageError,
               "zero_optimization.sub_group_size: is negative");
  EXPECT_ERROR(config_of(R"({"zero_optimization": {"sub_group_size": 18446744073709551615}})"),
               UsageError, "zero_optimization.sub_group_size: is 18446744073709551615");
  EXPECT_ERROR(config_of(R"({"zero_optimization": {"round_robin_gradients": 2}})"), UsageError,
               "zero_optimization.round_robin_gradients: is a number");
  EXPECT_ERROR(config_of(R"({"zero_optimization": {"offload_optimizer": {"device": "gpu"}}})"),
               UsageError, "zero_optimization.offload_optimizer.device: is 'gpu'");
  EXPECT_ERROR(config_of(R"({"zero_optimization": {"cpu_offload": false,
                             "offload_optimizer": {"device": "cpu"}}})"),
               UsageError, "zero_optimization.cpu_offload: stands beside offload_optimizer");
  EXPECT_ERROR(config_of(R"({"optimizer": {"params": [1]}})"), UsageError,
               "optimizer.params: is a list");
  EXPECT_ERROR(config_of(R"({"data_types": {"grad_accum_dtype": "int8"}})"), UsageError,
               "data_types.grad_accum_dtype: is 'int8'");
  EXPECT_ERROR(config_of(R"({"data_types": {"param_dtype": "bf16"}})"), UsageError,
               "data_types.param_dtype: is bf16, but the precision is fp32");
  EXPECT_ERROR(config_of(R"({"train_batch_size": true})"), UsageError,
               "train_batch_size: is a flag");
  EXPECT_ERROR(config_of(R"({"fp16": {"loss_scale": -1}})"), UsageError,
               "fp16.loss_scale: is -1.0");
  EXPECT_ERROR(config_of(R"({"fp16": {"enabled": true, "loss_scale_window": 0}})"), UsageError,
               "fp16.loss_scale_window: is not positive");
  EXPECT_ERROR(config_of(R"({"fp16": {"enabled": true}, "bf16": {"enabled": true}})"), UsageError,
               "fp16 and bf16 are both enabled");
  EXPECT_ERROR(engine_config(ordered_json::array()), UsageError, "is not an object");
}

EngineWrapper wrapper_of_json(const char* json, bool fused = false) {
  return wrapper_of(config_of(json), fused);
}

// engine.py _do_optimizer_sanity_check, row by row; what no checkpoint of the test data has.
TEST(EngineConfig, ChoosesTheWrapperAsTheEngineDoes) {
  EXPECT_EQ(wrapper_of_json(R"({"zero_optimization": {"stage": 1, "cpu_offload": true},
                                "bf16": {"enabled": true},
                                "data_types": {"grad_accum_dtype": "fp32"}})"),
            EngineWrapper::zero12);
  EXPECT_EQ(wrapper_of_json(
                R"({"zero_optimization": {"stage": 1, "offload_optimizer": {"device": "nvme"}},
                    "bf16": {"enabled": true}, "data_types": {"grad_accum_dtype": "fp32"}})"),
            EngineWrapper::bf16_optimizer);
  EXPECT_EQ(wrapper_of_json(R"({"zero_optimization": {"stage": 2}, "bf16": {"enabled": true},
                                "data_types": {"grad_accum_dtype": "fp32"}})"),
            EngineWrapper::zero12);
  EXPECT_EQ(wrapper_of_json(R"({"zero_optimization": {"stage": 1}, "fp16": {"enabled": true},
                                "data_types": {"grad_accum_dtype": "fp32"}})"),
            EngineWrapper::zero12);
  EXPECT_EQ(wrapper_of_json(R"({"zero_optimization": {"stage": 3}, "bf16": {"enabled": true},
                                "data_types": {"grad_accum_dtype": "fp32"}})"),
            EngineWrapper::zero3);
  EXPECT_EQ(wrapper_of_json("{}", true), EngineWrapper::plain);
}

TEST(EngineConfig, RefusesWhatTheEngineRefuses) {
  EXPECT_ERROR(wrapper_of_json(R"({"bf16": {"enabled": true},
                                   "data_types": {"grad_accum_dtype": "fp32"}})"),
               UsageError, "gradients of a model in bf16 cannot be accumulated in fp32");
  EXPECT_ERROR(wrapper_of_json(
                   R"({"zero_optimization": {"stage": 1, "compute_grad_norm": false},
                       "bf16": {"enabled": true}, "data_types": {"grad_accum_dtype": "fp32"}})"),
               UsageError, "compute_grad_norm");
  EXPECT_ERROR(wrapper_of_json(R"({"zero_optimization": {"stage": 1, "legacy_stage1": true}})"),
               UsageError, "legacy_stage1");
  EXPECT_ERROR(wrapper_of_json(R"({"fp16": {"enabled": true,
                                            "fp16_master_weights_and_grads": true}})"),
               UsageError, "need ZeRO stage");
  EXPECT_ERROR(wrapper_of_json(R"({"zero_optimization": {"stage": 2},
                                   "bf16": {"enabled": true, "bf16_optimizer_states": true}})"),
               UsageError, "needs bf16.bf16_master_weights_and_grads");
  EXPECT_ERROR(wrapper_of_json(R"({"zero_optimization": {"stage": 2, "zenflow": {}}})"),
               UnsupportedError, "ZenFlow");
}

}  // namespace
}  // namespace dsckpt
