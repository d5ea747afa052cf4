// Configurations against DeepSpeed: what case.json says of the live engine, and Python's json.
#include "deepspeed/ds_config.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <limits>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "checkpoint/checkpoint.h"
#include "deepspeed/keys.h"
#include "deepspeed/shard_name.h"
#include "support/expect_error.h"
#include "support/temp_file.h"

namespace dsckpt {
namespace {

namespace fs = std::filesystem;
using nlohmann::ordered_json;
using pickle::Document;

Document parse(std::string_view pickle) {
  return Document::parse(as_byte_span(pickle));
}

ordered_json json_of_pickle(std::string_view pickle) {
  const Document document = parse(pickle);
  return json_of(document.root());
}

EngineConfig config_of(const char* json) {
  return engine_config(ordered_json::parse(json));
}

std::vector<fs::path> cases_in(const char* folder) {
  std::vector<fs::path> cases;
  for (const auto& entry : fs::directory_iterator(fs::path(DSCKPT_TESTDATA) / folder)) {
    if (fs::exists(entry.path() / "case.json")) cases.push_back(entry.path());
  }
  std::sort(cases.begin(), cases.end());
  return cases;
}

// A checkpoint's configuration, with what its writer noted of the live engine.
struct Case {
  explicit Case(const fs::path& folder)
      : facts(ordered_json::parse(std::ifstream(folder / "case.json"))),
        load_dir(folder / facts.at("load_dir").get<std::string>()),
        ds_config(read_ds_config()),
        config(engine_config(ds_config)) {}

  std::string class_of(const char* which) const {
    const std::string name = facts.at("optimizer_classes").at(which);
    return name.substr(name.rfind('.') + 1);
  }

  ordered_json facts;
  fs::path load_dir;
  ordered_json ds_config;
  EngineConfig config;

 private:
  ordered_json read_ds_config() const {
    for (const auto& entry :
         fs::directory_iterator(load_dir / facts.at("tag").get<std::string>())) {
      const auto name = parse_shard_name(entry.path().filename().string());
      if (!name || (name->kind != ShardName::Kind::model_states &&
                    name->kind != ShardName::Kind::zero_model_states)) {
        continue;
      }
      InputFiles inputs;
      const TorchArchive archive = TorchArchive::open(inputs, inputs.add(entry.path()));
      return json_of(archive.root().at(keys::kDsConfig));
    }
    throw std::runtime_error("there is no model-states file");
  }
};

void expect_as_the_engine_was(const Case& one) {
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

TEST(DsConfig, TellsTheEngineOfEveryDataParallelCheckpoint) {
  const std::vector<fs::path> cases = cases_in("checkpoints");
  ASSERT_GT(cases.size(), 50u);
  for (const fs::path& folder : cases) {
    SCOPED_TRACE(folder.filename());
    const Case one(folder);
    expect_as_the_engine_was(one);
    // What the readers find in the files agrees.
    InputFiles inputs;
    const CheckpointFacts facts = Checkpoint::open(inputs, one.load_dir).facts();
    EXPECT_EQ(one.config.zero_stage, facts.zero_stage);
    const bool fused = one.class_of("base") == "FusedAdam";
    EXPECT_EQ(wrapper_of(one.config, fused), facts.optimizer_wrapper);
  }
}

TEST(DsConfig, TellsTheEngineOfEveryModelParallelCheckpoint) {
  const std::vector<fs::path> cases = cases_in("model_parallel");
  ASSERT_GT(cases.size(), 20u);
  for (const fs::path& folder : cases) {
    SCOPED_TRACE(folder.filename());
    const Case one(folder);
    expect_as_the_engine_was(one);
    const ordered_json& written = one.facts.at("ds_config");
    EXPECT_EQ(one.config.autotp_size, written.contains("tensor_parallel")
                                          ? written["tensor_parallel"]["autotp_size"].get<int64_t>()
                                          : 0);
  }
}

TEST(DsConfig, ReadsThePickledConfigurationAsItWasGiven) {
  size_t compared = 0;
  for (const fs::path& folder : cases_in("checkpoints")) {
    SCOPED_TRACE(folder.filename());
    const Case one(folder);
    if (one.facts.at("kind") != "plain") continue;
    EXPECT_EQ(one.ds_config, one.facts.at("ds_config"));
    ++compared;
  }
  EXPECT_GT(compared, 50u);
}

TEST(DsConfig, FillsHuggingFacesAutosFromTheCheckpoint) {
  const fs::path folder = fs::path(DSCKPT_TESTDATA) / "checkpoints" / "hf_trainer_llama_z1_bf16_w3";
  const Case one(folder);
  const ordered_json& file = one.facts.at("ds_config");
  EXPECT_EQ(engine_config(file).train_batch_size, std::nullopt);
  const ordered_json filled = with_autos_from(file, one.ds_config);
  EXPECT_EQ(engine_config(filled), one.config);
  EXPECT_EQ(filled["optimizer"]["params"]["betas"], ordered_json({0.9, 0.999}));
  EXPECT_EQ(filled.dump().find("auto\""), std::string::npos) << filled;

  EXPECT_EQ(with_autos_from({{"a", "auto"}, {"b", {{"c", "auto"}}}}, {{"b", 1}}),
            ordered_json({{"a", "auto"}, {"b", {{"c", "auto"}}}}));
}

TEST(DsConfig, BecomesJsonAsPythonWritesIt) {
  EXPECT_EQ(
      json_of_pickle("(dp0\nVnone\np1\nNsVyes\np2\nI01\nsVno\np3\nI00\nsVint\np4\nI-5\nsVlarge"
                     "\np5\nL4611686018427387904L\nsVreal\np6\nF1.5\nsVtext\np7\nV\\u20ac "
                     "x\np8\nsVtuple\np9\n(I1\nF2.0\ntp10\nsVlist\np11\n(lp12\n(dp13\nVa\np14"
                     "\n(lp15\nsa(tas.")
          .dump(),
      R"({"none":null,"yes":true,"no":false,"int":-5,"large":4611686018427387904,)"
      R"("real":1.5,"text":"€ x","tuple":[1,2.0],"list":[{"a":[]},[]]})");
  // Python's json on keys that are not strings.
  EXPECT_EQ(json_of_pickle(
                "(dp0\nNI0\nsI01\nI1\nsI00\nI2\nsI7\nI3\nsI-8\nI4\nsF1.5\nI5\nsF1e+22\nI6\nsF1e-05"
                "\nI7\nsF1e+16\nI8\nsF1000000000000000.0\nI9\nsF123456789012345.0\nI10\nsF0.0001"
                "\nI11\nsF-2.0\nI12\nsFinf\nI13\nsVs\np1\nI14\nsF9007199254740992.0\nI15\nsF0.1"
                "\nI16\ns.")
                .dump(),
            R"({"null":0,"true":1,"false":2,"7":3,"-8":4,"1.5":5,"1e+22":6,"1e-05":7,"1e+16":8,)"
            R"("1000000000000000.0":9,"123456789012345.0":10,"0.0001":11,"-2.0":12,"Infinity":13,)"
            R"("s":14,"9007199254740992.0":15,"0.1":16})");
}

TEST(DsConfig, NamesTheKeyOfWhatJsonCannotHold) {
  EXPECT_ERROR(json_of_pickle("(dp0\nVzero\np1\n(dp2\nVlist\np3\n(lp4\nI1\na(dp5\nVx\np6\n"
                              "L1180591620717411303424L\nsass."),
               UnsupportedError, "zero.list[1].x: is an integer beyond 64 bits");
  EXPECT_ERROR(json_of_pickle("(dp0\nVzero\np1\n(dp2\nVx\np3\nc_codecs\nencode\np4\n(Vab\np5\n"
                              "Vlatin1\np6\ntp7\nRp8\nss."),
               UnsupportedError, "zero.x: is bytes");
  EXPECT_ERROR(
      json_of_pickle("(dp0\nVopt\np1\n(lp2\ncfractions\nFraction\np3\n(I1\nI2\ntp4\nRp5\nas."),
      UnsupportedError, "opt[0]: is object of fractions.Fraction");
  EXPECT_ERROR(json_of_pickle("(dp0\nI1\nI0\nsV1\np1\nI1\ns."), UnsupportedError,
               "1: two keys become this one");
  EXPECT_ERROR(json_of_pickle("(dp0\nVa\np1\n(dp2\n(I1\nI2\ntp3\nI3\nss."), UnsupportedError,
               "a: has a key that is tuple");
}

TEST(DsConfig, DoesNotFollowAPickleWithoutEnd) {
  EXPECT_ERROR(json_of_pickle("(dp0\nVa\np1\n(lp2\ng2\nas."), UnsupportedError,
               "nested too deeply");
  // Forty lists, each of which holds the one before twice.
  Document document;
  pickle::Value value = document.list();
  for (int i = 0; i < 40; ++i) value = document.list({value, value});
  EXPECT_ERROR(json_of(value), UnsupportedError, "too many values");
}

TEST(DsConfig, GoesBackIntoAPickle) {
  const ordered_json json = ordered_json::parse(
      R"({"b":{"c":[1,-2,2.5,null,true,"x"]},"a":18446744073709551615,"big":9223372036854775807})");
  Document document;
  document.set_root(pickle_of(document, json));
  // pickle.dumps(the same dict, protocol=2) as pickletools shows it, memo left out.
  const pickle::Value root = document.root();
  ASSERT_TRUE(root.is(pickle::Kind::dict));
  EXPECT_EQ(root.as_dict().items.at(0).first.as_string(), "b");
  EXPECT_EQ(root.as_dict().items.at(1).first.as_string(), "a");
  EXPECT_EQ(root.at("a").as_bytes(), std::string(8, '\xff') + '\0');
  EXPECT_TRUE(root.at("big").is(pickle::Kind::integer));
  EXPECT_EQ(root.at("big").as_int(), std::numeric_limits<int64_t>::max());
  const auto list = root.at("b").at("c").as_sequence();
  ASSERT_TRUE(root.at("b").at("c").is(pickle::Kind::list));
  ASSERT_EQ(list.size(), 6u);
  EXPECT_TRUE(list[0].is(pickle::Kind::integer));
  EXPECT_EQ(list[1].as_int(), -2);
  EXPECT_EQ(list[2].as_real(), 2.5);
  EXPECT_TRUE(list[3].is_none());
  EXPECT_TRUE(list[4].is_true());
  EXPECT_EQ(list[5].as_string(), "x");
}

TEST(DsConfig, KeepsAnInfinityInThePickleButWritesNoneIntoAFile) {
  const Case one(fs::path(DSCKPT_TESTDATA) / "checkpoints" / "hf_trainer_gpt2_z2_bf16_w2");
  Document document;
  const pickle::Value back = pickle_of(document, one.ds_config);
  EXPECT_TRUE(std::isinf(back.at("steps_per_print").as_real()));
  EXPECT_EQ(ordered_json::parse(ds_config_text(one.ds_config))["steps_per_print"], nullptr);

  const double infinity = std::numeric_limits<double>::infinity();
  EXPECT_ERROR(ds_config_text({{"a", {1, {{"b", -infinity}}}}}), UnsupportedError,
               "a[1].b: is -Infinity");
  EXPECT_ERROR(ds_config_text({{"steps_per_print", std::nan("")}}), UnsupportedError,
               "steps_per_print: is NaN");
  EXPECT_ERROR(ds_config_text({{"a", "\xed\xa0\x80"}}), UnsupportedError, "a: is not UTF-8");
  EXPECT_ERROR(ds_config_text({{"\xff", 1}}), UnsupportedError, "a key that is not UTF-8");
}

class File {
 public:
  explicit File(std::string_view text) : path_(folder_.write("ds_config.json", text)) {}
  ordered_json load() const { return load_ds_config(path_); }

 private:
  test::TempFolder folder_;
  fs::path path_;
};

TEST(DsConfig, ReadsFilesWithComments) {
  EXPECT_EQ(
      File("{\"b\": 1, // one\n \"a\": {\"x\": [1e9, /* two */ \"t\", [], {}]}}\n").load().dump(),
      R"({"b":1,"a":{"x":[1000000000.0,"t",[],{}]}})");
  EXPECT_EQ(File("\xef\xbb\xbf{}").load(), ordered_json::object());
}

TEST(DsConfig, SaysWhereAFileIsNotJson) {
  EXPECT_ERROR(File("{\"a\": 1,\n \"b\": }").load(), UsageError,
               "ds_config.json: line 2, column 7: syntax error");
  EXPECT_ERROR(File("{\"a\": NaN}").load(), UsageError, "line 1, column 7: ");
  EXPECT_ERROR(File("").load(), UsageError, "line 1, column 1: ");
  EXPECT_ERROR(File("{} {}").load(), UsageError, "line 1, column 4: ");
  EXPECT_ERROR(File("{\"a\": 1e999}").load(), UsageError, "line 1, column ");
  EXPECT_ERROR(File("[1]").load(), UsageError, "is not an object");
  EXPECT_ERROR(File(std::string(200, '[')).load(), UsageError, "nested too deeply");
  EXPECT_ERROR(load_ds_config("/nonexistent/ds_config.json"), IoError, "ds_config.json");
}

TEST(DsConfig, RefusesKeysThatComeTwice) {
  EXPECT_ERROR(File(R"({"a": 1, "b": {"a": 2}, "a": 3})").load(), UsageError,
               "the key a is there twice");
  EXPECT_ERROR(File(R"({"zero_optimization": {"stage": 1, "stage": 2}})").load(), UsageError,
               "the key zero_optimization.stage is there twice");
  EXPECT_ERROR(File(R"({"l": [0, {"x": 1, "x": 2}]})").load(), UsageError,
               "the key l[1].x is there twice");
}

TEST(DsConfig, RefusesFilesThatAreTooLong) {
  EXPECT_ERROR(File("{}" + std::string((16 << 20) - 1, ' ')).load(), UsageError, "too long");
}

TEST(DsConfig, HasDeepSpeedsDefaults) {
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

TEST(DsConfig, ReadsEverySetting) {
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

TEST(DsConfig, KnowsOldSpellings) {
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

TEST(DsConfig, NamesTheKeyOfAWrongValue) {
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
TEST(DsConfig, ChoosesTheWrapperAsTheEngineDoes) {
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

TEST(DsConfig, RefusesWhatTheEngineRefuses) {
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
