// The choice of a new run's settings from facts written by hand. Expectations are the rules of
// DeepSpeed's engine (runtime/engine.py, zero/config.py, zero/stage_1_and_2.py).
#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <vector>

#include "deepspeed/ds_config.h"
#include "reshard/refusals.h"
#include "reshard/target.h"

namespace dsckpt {
namespace {

using Json = nlohmann::ordered_json;
using Names = std::vector<std::string>;

// A run and what is known of it.
class KnownRun {
 public:
  KnownRun(int stage, EngineWrapper wrapper, const std::string& name = "old") {
    facts.folder = name;
    facts.file = name + "/model.pt";
    facts.checkpoint.zero_stage = stage;
    facts.checkpoint.optimizer_wrapper = wrapper;
    facts.checkpoint.mesh.dp = 2;
    facts.has_optimizer = true;
    facts.has_base_step = true;
    facts.state_keys = {"exp_avg", "exp_avg_sq"};
    add("a", {4});
    add("b", {2, 3});
    facts.groups = {group({"a", "b"})};
    facts.sub_groups = {2};
    set_config({{"zero_optimization", {{"stage", stage}}}});
  }

  Param& add(const std::string& name, Shape shape, ParamKind kind = ParamKind::trainable) {
    params.push_back(
        {.name = name, .kind = kind, .weight = TensorSource::zeros(DType::float32, shape)});
    if (kind == ParamKind::trainable) {
      params.back().states = {{"exp_avg", TensorSource::zeros(DType::float32, shape)}};
    }
    return params.back();
  }

  // DeepSpeed's own Adam: its hyper-parameters have bias_correction, and no amsgrad.
  static RunGroup group(Names names) {
    return {.params = std::move(names), .settings = {.known = true, .bias_correction = true}};
  }

  void set_config(Json config) {
    facts.engine = engine_config(config);
    facts.config = std::move(config);
  }

  void without_config() {
    facts.config.reset();
    facts.engine.reset();
  }

  void torchs_adam() {
    for (RunGroup& each : facts.groups) {
      each.settings.bias_correction = false;
      each.settings.amsgrad = true;
    }
  }

  // With what is in `params` by now.
  const RunFacts& known() {
    facts.params = ParamIndex(params);
    return facts;
  }

  RunFacts facts;
  std::vector<Param> params;
};

KnownRun zero2() {
  return {2, EngineWrapper::zero12};
}

// The inputs of one choice.
struct Request {
  KnownRun source = zero2();
  std::optional<KnownRun> like = {};
  TargetOptions options = {.dp = 3};

  ReshardTarget target() {
    notes.clear();
    return choose_target(source.known(), like ? &like->known() : nullptr, options, notes);
  }

  Names notes = {};
};

Names names_of(const ReshardTarget& target) {
  Names names;
  for (const RunGroup& group : target.groups) {
    for (const std::string& name : group.params) names.push_back(name);
  }
  return names;
}

TEST(ReshardTarget, IsOfTheNewRanksAndElseAsItWas) {
  Request request;
  request.source.facts.mp_rank = 5;
  request.source.facts.param_dtype = DType::bfloat16;
  const ReshardTarget target = request.target();
  EXPECT_EQ(target.dp, 3u);
  EXPECT_EQ(target.mp_rank, 5u);
  EXPECT_EQ(target.ep, 1u);
  EXPECT_EQ(target.stage, 2);
  EXPECT_EQ(target.wrapper, EngineWrapper::zero12);
  EXPECT_EQ(target.saved_param_dtype, DType::bfloat16);
  EXPECT_EQ(target.param_dtype, std::nullopt);
  EXPECT_FALSE(target.new_loss_scaler);
  EXPECT_EQ(target.ds_config, std::nullopt);
  EXPECT_EQ(names_of(target), (Names{"a", "b"}));
  EXPECT_EQ(request.notes, Names{});
}

TEST(ReshardTarget, StageIsThatOfTheOptionTheConfigurationTheOtherRunOrTheCheckpoint) {
  Request request;
  request.options.stage = 3;
  EXPECT_EQ(request.target().stage, 3);

  request = {};
  request.options.ds_config = Json{{"zero_optimization", {{"stage", 1}}}};
  EXPECT_EQ(request.target().stage, 1);
  request.options.stage = 1;
  EXPECT_EQ(request.target().stage, 1);

  request = {};
  request.like = KnownRun(3, EngineWrapper::zero3, "like");
  EXPECT_EQ(request.target().stage, 3);
  // A configuration outweighs a checkpoint.
  request.options.ds_config = Json{{"zero_optimization", {{"stage", 1}}}};
  EXPECT_EQ(request.target().stage, 1);
}

TEST(ReshardTarget, PrecisionChangesParametersAndLossScaleOnlyWhereItIsAnother) {
  Request request;
  request.source.facts.precision = Precision::bf16;
  ReshardTarget target = request.target();
  EXPECT_EQ(target.precision, Precision::bf16);
  EXPECT_EQ(target.param_dtype, std::nullopt);
  EXPECT_FALSE(target.new_loss_scaler);

  request.options.ds_config =
      Json{{"zero_optimization", {{"stage", 2}}}, {"fp16", {{"enabled", true}}}};
  target = request.target();
  EXPECT_EQ(target.precision, Precision::fp16);
  EXPECT_EQ(target.param_dtype, DType::float16);
  EXPECT_TRUE(target.new_loss_scaler);
  EXPECT_EQ(request.notes,
            (Names{"the precision changes from bf16 to fp16: the parameters are rounded from the "
                   "masters, and the loss scale starts anew"}));

  request.options.ds_config.reset();
  request.like = zero2();
  request.like->facts.precision = Precision::fp32;
  EXPECT_EQ(request.target().param_dtype, DType::float32);
}

TEST(ReshardTarget, ARunFromWeightsHasANewLossScalerInItsOwnPrecision) {
  Request request;
  request.source.facts.checkpoint.values = ValuesFrom::start;
  const ReshardTarget target = request.target();
  EXPECT_TRUE(target.new_loss_scaler);
  EXPECT_EQ(target.param_dtype, std::nullopt);
}

// The wrapper of a run of FusedAdam under `config`.
EngineWrapper wrapper_under(Json config, const std::function<void(KnownRun&)>& change = {}) {
  Request request;
  request.source.facts.checkpoint.zero_stage = 3;
  request.source.facts.checkpoint.optimizer_wrapper = EngineWrapper::zero3;
  if (change) change(request.source);
  request.options.ds_config = std::move(config);
  return request.target().wrapper;
}

// engine.py _do_optimizer_sanity_check, _configure_fp16_optimizer.
TEST(ReshardTarget, WrapperIsWhatTheEngineWouldTake) {
  const Json bf16{{"enabled", true}};
  const Json fp32_gradients{{"grad_accum_dtype", "fp32"}};
  const auto torchs = [](KnownRun& run) { run.torchs_adam(); };
  EXPECT_EQ(wrapper_under(Json::object()), EngineWrapper::plain);
  EXPECT_EQ(wrapper_under({{"bf16", bf16}}), EngineWrapper::fp16_fused);
  EXPECT_EQ(wrapper_under({{"fp16", {{"enabled", true}}}}), EngineWrapper::fp16_fused);
  EXPECT_EQ(wrapper_under({{"fp16", {{"enabled", true}}}}, torchs), EngineWrapper::fp16_unfused);
  EXPECT_EQ(wrapper_under({{"zero_optimization", {{"stage", 1}}}, {"bf16", bf16}}),
            EngineWrapper::zero12);
  EXPECT_EQ(
      wrapper_under(
          {{"zero_optimization", {{"stage", 1}}}, {"bf16", bf16}, {"data_types", fp32_gradients}}),
      EngineWrapper::bf16_optimizer);
  EXPECT_EQ(wrapper_under(
                {{"zero_optimization", {{"stage", 1}, {"offload_optimizer", {{"device", "cpu"}}}}},
                 {"bf16", bf16},
                 {"data_types", fp32_gradients}}),
            EngineWrapper::zero12);
  EXPECT_EQ(
      wrapper_under(
          {{"zero_optimization", {{"stage", 2}}}, {"bf16", bf16}, {"data_types", fp32_gradients}}),
      EngineWrapper::zero12);
  EXPECT_EQ(wrapper_under({{"zero_optimization", {{"stage", 3}}}, {"bf16", bf16}}),
            EngineWrapper::zero3);
}

TEST(ReshardTarget, WrapperStaysWhereTheStageDoesWhateverTheConfigurationMakesOfIt) {
  Request request;
  request.source = KnownRun(1, EngineWrapper::bf16_optimizer);
  EXPECT_EQ(request.target().wrapper, EngineWrapper::bf16_optimizer);
  // In a universal folder only the configuration shows the wrapper.
  request.source.facts.checkpoint.run = RunKind::universal;
  EXPECT_EQ(request.target().wrapper, EngineWrapper::zero12);
  request = {};
  request.like = KnownRun(1, EngineWrapper::bf16_optimizer, "like");
  EXPECT_EQ(request.target().wrapper, EngineWrapper::bf16_optimizer);
}

// The defaults of zero/config.py and precision_config.py.
TEST(ReshardTarget, WrapperWithoutAConfigurationIsThatOfDeepSpeedsDefaults) {
  const auto wrapper = [](int stage, Precision precision, bool fused) {
    Request request;
    request.source.facts.precision = precision;
    if (!fused) request.source.torchs_adam();
    request.source.without_config();
    if (stage == 2) request.source.facts.checkpoint.zero_stage = 3;
    request.options.stage = stage;
    return request.target().wrapper;
  };
  EXPECT_EQ(wrapper(3, Precision::bf16, true), EngineWrapper::zero3);
  EXPECT_EQ(wrapper(2, Precision::bf16, true), EngineWrapper::zero12);
  EXPECT_EQ(wrapper(1, Precision::bf16, true), EngineWrapper::zero12);
  EXPECT_EQ(wrapper(0, Precision::fp32, true), EngineWrapper::plain);
  EXPECT_EQ(wrapper(0, Precision::bf16, true), EngineWrapper::fp16_fused);
  EXPECT_EQ(wrapper(0, Precision::bf16, false), EngineWrapper::fp16_unfused);
}

TEST(ReshardTarget, RoundRobinAndAlignmentAreThoseOfTheFilesOrOfTheConfiguration) {
  Request request;
  EXPECT_FALSE(request.target().round_robin);
  EXPECT_FALSE(request.target().parameter_alignment);
  // The files tell, even where the configuration says something else.
  request.source.facts.checkpoint.round_robin = true;
  request.source.facts.checkpoint.parameter_alignment = true;
  EXPECT_TRUE(request.target().round_robin);
  EXPECT_TRUE(request.target().parameter_alignment);
  request.options.stage = 1;
  EXPECT_TRUE(request.target().round_robin);

  // A new configuration outweighs the old files.
  request.options.ds_config = Json{{"zero_optimization", {{"stage", 1}}}};
  EXPECT_FALSE(request.target().round_robin);
  EXPECT_FALSE(request.target().parameter_alignment);

  // Only stages 1 and 2 know of them, and BF16_Optimizer does not.
  request.options = {.dp = 3, .stage = 3};
  EXPECT_FALSE(request.target().round_robin);
  EXPECT_FALSE(request.target().parameter_alignment);
  request.options = {.dp = 3};
  request.options.ds_config =
      Json{{"zero_optimization", {{"stage", 1}, {"round_robin_gradients", true}}},
           {"bf16", {{"enabled", true}}},
           {"data_types", {{"grad_accum_dtype", "fp32"}}}};
  EXPECT_FALSE(request.target().round_robin);

  // Files of stage 3 tell nothing of it: the configuration that was there does.
  request = {};
  request.source = KnownRun(3, EngineWrapper::zero3);
  request.source.set_config(
      {{"zero_optimization",
        {{"stage", 3}, {"round_robin_gradients", true}, {"parameter_alignment", true}}}});
  request.options.stage = 2;
  EXPECT_TRUE(request.target().round_robin);
  EXPECT_TRUE(request.target().parameter_alignment);
}

TEST(ReshardTarget, SubGroupSizeIsThatOfTheOptionTheConfigurationOrTheDefault) {
  Request request;
  request.options.stage = 3;
  EXPECT_EQ(request.target().sub_group_size, 1'000'000'000u);  // zero/config.py sub_group_size
  request.source.set_config({{"zero_optimization", {{"stage", 2}, {"sub_group_size", 77}}}});
  EXPECT_EQ(request.target().sub_group_size, 77u);
  request.options.sub_group_size = 5;
  EXPECT_EQ(request.target().sub_group_size, 5u);
  request.options = {.dp = 3};
  request.options.ds_config = Json{{"zero_optimization", {{"stage", 3}, {"sub_group_size", 9}}}};
  EXPECT_EQ(request.target().sub_group_size, 9u);
}

TEST(ReshardTarget, GroupsAreThoseOfTheOtherRunWithTheCheckpointsHyperParameters) {
  Request request;
  request.source.facts.groups = {KnownRun::group({"a"}), KnownRun::group({"b"})};
  request.source.facts.groups[1].settings.amsgrad = true;  // to tell it by
  request.like = zero2();
  request.like->facts.folder = "like";
  request.like->facts.groups = {KnownRun::group({"b"}), KnownRun::group({"a"})};
  ReshardTarget target = request.target();
  EXPECT_EQ(names_of(target), (Names{"b", "a"}));
  EXPECT_TRUE(target.groups[0].settings.amsgrad);
  EXPECT_FALSE(target.groups[1].settings.amsgrad);
  EXPECT_EQ(request.notes, Names{});

  // Their own where the checkpoint has no such group.
  request.like->facts.groups = {KnownRun::group({"b", "a"})};
  target = request.target();
  EXPECT_EQ(names_of(target), (Names{"b", "a"}));
  EXPECT_FALSE(target.groups[0].settings.amsgrad);
  EXPECT_EQ(request.notes,
            (Names{"hyper-parameters are those of like for the groups that the checkpoint does not "
                   "have"}));
}

TEST(ReshardTarget, ZeroLeavesOutParametersWithoutElementsAndAPlainOptimizerDoesNot) {
  Request request;
  request.source = KnownRun(0, EngineWrapper::plain);
  request.source.add("empty", {0});
  request.source.facts.groups = {KnownRun::group({"a", "empty", "b"})};
  EXPECT_EQ(names_of(request.target()), (Names{"a", "empty", "b"}));
  request.options.stage = 1;
  EXPECT_EQ(names_of(request.target()), (Names{"a", "b"}));
}

TEST(ReshardTarget, ElasticFilesStayElasticUnlessAnotherRunHasHyperParameters) {
  Request request;
  request.source.facts.checkpoint.elastic = true;
  EXPECT_TRUE(request.target().elastic);
  request.like = zero2();
  EXPECT_FALSE(request.target().elastic);
}

std::string expert_weight(int number) {
  return "moe.deepspeed_moe.experts.deepspeed_experts." + std::to_string(number) + ".w";
}

// Four experts on two ranks, and what all ranks share.
KnownRun with_experts() {
  KnownRun run = zero2();
  for (int i = 0; i < 4; ++i) run.add(expert_weight(i), {3});
  run.facts.groups = {KnownRun::group({"a", "b"}),
                      KnownRun::group({expert_weight(0), expert_weight(1)})};
  run.facts.groups[1].ep_size = 2;
  run.facts.groups[1].settings.moe = true;
  return run;
}

TEST(ReshardTarget, ExpertsAreSpreadOverAsManyRanksAsBeforeOrAsAskedFor) {
  Request request;
  request.source = with_experts();
  request.options.dp = 4;
  ReshardTarget target = request.target();
  EXPECT_EQ(target.ep, 2u);
  EXPECT_FALSE(target.data_before_experts);
  EXPECT_EQ(names_of(target), (Names{"a", "b", expert_weight(0), expert_weight(1)}));

  request.options.ep = 4;
  target = request.target();
  EXPECT_EQ(target.ep, 4u);
  EXPECT_EQ(names_of(target), (Names{"a", "b", expert_weight(0)}));
  EXPECT_EQ(target.groups[1].ep_size, 4u);

  request.options.ep = 1;
  target = request.target();
  EXPECT_EQ(target.ep, 1u);
  EXPECT_EQ(names_of(target), (Names{"a", "b", expert_weight(0), expert_weight(1), expert_weight(2),
                                     expert_weight(3)}));

  request.source.set_config(
      {{"zero_optimization", {{"stage", 2}}}, {"use_data_before_expert_parallelism", true}});
  request.options.ep = 2;
  EXPECT_TRUE(request.target().data_before_experts);
}

TEST(ReshardTarget, ExpertsOnOtherRanksKeepTheCheckpointsHyperParameters) {
  Request request;
  request.source = with_experts();
  request.source.facts.groups[1].settings.amsgrad = true;  // to tell it by
  request.like = with_experts();
  request.like->facts.groups[1].ep_size = 4;
  request.like->facts.groups[1].params = {expert_weight(0)};
  request.options.dp = 4;
  const ReshardTarget target = request.target();
  EXPECT_EQ(names_of(target), (Names{"a", "b", expert_weight(0)}));
  EXPECT_EQ(target.groups[1].ep_size, 4u);
  EXPECT_TRUE(target.groups[1].settings.amsgrad);
  EXPECT_EQ(request.notes, Names{});
}

TEST(ReshardTarget, ConfigurationSaysWhatIsNew) {
  Request request;
  request.options = {.dp = 3, .stage = 3, .sub_group_size = 7};
  EXPECT_EQ(request.target().ds_config,
            (Json{{"zero_optimization", {{"stage", 3}, {"sub_group_size", 7}}}}));

  request = {};
  request.options.ds_config = Json{{"zero_optimization", {{"stage", 1}}}, {"mine", "auto"}};
  request.source.set_config({{"mine", 5}, {"zero_optimization", {{"stage", 2}}}});
  EXPECT_EQ(request.target().ds_config, (Json{{"zero_optimization", {{"stage", 1}}}, {"mine", 5}}));

  // The files of the other run are of its configuration.
  request = {};
  request.like = zero2();
  request.like->set_config({{"zero_optimization", {{"stage", 2}}}, {"of", "like"}});
  EXPECT_EQ(request.target().ds_config, request.like->facts.config);

  // autoep_size is the engine's number of expert-parallel ranks.
  request = {};
  request.source = with_experts();
  request.source.set_config(
      {{"zero_optimization", {{"stage", 2}}}, {"expert_parallel", {{"autoep_size", 2}}}});
  request.options = {.dp = 4, .ep = 4};
  EXPECT_EQ(request.target().ds_config, (Json{{"zero_optimization", {{"stage", 2}}},
                                              {"expert_parallel", {{"autoep_size", 4}}}}));
}

// engine.py load_checkpoint: an engine with its optimizer on NVMe reads no optimizer-states files.
TEST(ReshardTarget, OptimizerLeavesNvme) {
  Request request;
  const Json nvme{{"stage", 3}, {"offload_optimizer", {{"device", "nvme"}, {"nvme_path", "/x"}}}};
  request.source = KnownRun(3, EngineWrapper::zero3);
  request.source.set_config({{"zero_optimization", nvme}});
  EXPECT_EQ(
      request.target().ds_config,
      (Json{{"zero_optimization", {{"stage", 3}, {"offload_optimizer", {{"device", "cpu"}}}}}}));
  EXPECT_EQ(request.notes,
            (Names{"offload_optimizer.device is cpu in the new files, nvme in the checkpoint: with "
                   "nvme DeepSpeed does not read the optimizer's files, so resume with cpu or "
                   "none"}));
  // A configuration that is given stays as it is.
  request.options.ds_config = Json{{"zero_optimization", nvme}};
  EXPECT_EQ(request.target().ds_config, request.options.ds_config);
  EXPECT_EQ(request.notes,
            (Names{"with offload_optimizer.device nvme DeepSpeed does not read the optimizer's "
                   "files: resume with cpu or none"}));
}

TEST(ReshardTarget, NotesComeInTheOrderOfWhatIsDecided) {
  Request request;
  request.source.facts.config_error = "is odd";
  request.source.add("frozen", {1}, ParamKind::frozen);
  request.options.ds_config = Json{{"checkpoint", {{"writer", {{"type", "fast"}}}}},
                                   {"zero_optimization", {{"zero_hpz_partition_size", 2}}}};
  request.source.facts.precision = Precision::bf16;
  request.target();
  EXPECT_EQ(request.notes,
            (Names{"the checkpoint's ds_config is not understood (is odd); the facts "
                   "in the files are used instead",
                   "the precision changes from bf16 to fp32: the parameters are rounded from the "
                   "masters, and the loss scale starts anew",
                   "stage 0 in fp32 counts every parameter that the optimizer is given: give it "
                   "only those that are trained",
                   "with checkpoint.writer set DeepSpeed does not load its own optimizer files; "
                   "turn it off to resume",
                   "zero_hpz_partition_size is 2, which does not divide 3 ranks; change it in the "
                   "new run"}));

  request = {};
  request.source.without_config();
  request.like = zero2();
  request.like->without_config();
  request.like->facts.config_error = "is odder";
  request.target();
  EXPECT_EQ(request.notes,
            (Names{"the checkpoint's ds_config is not understood (is odder); the facts "
                   "in the files are used instead",
                   "no ds_config sets round_robin_gradients: it is taken to be off"}));

  request = {};
  request.source.set_config(
      {{"zero_optimization", {{"stage", 2}}}, {"checkpoint", {{"load_universal", true}}}});
  request.target();
  EXPECT_EQ(request.notes,
            (Names{"checkpoint.load_universal is set: DeepSpeed would look for a universal "
                   "checkpoint; turn it off in the new run"}));
}

// --- refusals

struct RefusedCase {
  std::function<void(Request&)> change;
  std::string what;
  std::string hint = "";
};

void like(Request& request, KnownRun run = {2, EngineWrapper::zero12, "like"}) {
  run.facts.folder = "like";
  run.facts.file = "like/model.pt";
  request.like = std::move(run);
}

void configure(Request& request, Json config) {
  if (!config.contains("zero_optimization")) config["zero_optimization"] = {{"stage", 2}};
  request.options.ds_config = std::move(config);
}

const char* const kOfTorch =
    "the new run's optimizer is DeepSpeed's own Adam, the checkpoint's is torch's, whose "
    "hyper-parameters have no bias_correction: DeepSpeed would stop at the first step";
const char* const kGroupsOfLike =
    "--like CHECKPOINT takes the groups from a checkpoint of the new run";
const char* const kSettingsOfLike =
    "--like CHECKPOINT takes the hyper-parameters from a checkpoint of the new run";
const char* const kConfigured = "--ds-config says the new run's";

// One for each row of the table, in its order: nothing but this row applies, or only later ones.
std::vector<RefusedCase> refused_cases() {
  return {
      {[](Request& r) {
         for (Param& param : r.source.params) param.kind = ParamKind::frozen;
       },
       "old/model.pt: has no parameter that an optimizer owns: there is nothing to reshard"},
      {[](Request& r) {
         r.source.facts.checkpoint.values = ValuesFrom::start;
         r.source.facts.file = "";
       },
       "weights do not tell the optimizer and its parameter groups",
       "--like CHECKPOINT takes them from a checkpoint of the new run"},
      {[](Request& r) {
         r.source.facts.checkpoint.values = ValuesFrom::start;
         r.source.facts.checkpoint.elastic = true;
       },
       "old/model.pt: is elastic and has no hyper-parameters to start with"},
      {[](Request& r) { r.source.facts.has_optimizer = false; },
       "old/model.pt: has no optimizer state: there is no training to continue"},
      {[](Request& r) { r.options.ds_version = "soon"; },
       "--ds-version 'soon' is not a release of DeepSpeed, like 0.16.4"},
      {[](Request& r) { r.options.ds_version = "0.3.1"; }, "no release before 0.4 is written for"},
      {[](Request& r) {
         r.source.set_config({{"expert_parallel", {{"autoep_size", 2}}}});
         r.options.ds_version = "0.18.2";
       },
       "old: has experts of AutoEP, which that release does not have"},
      {[](Request& r) {
         configure(r, {{"bf16", {{"enabled", "auto"}}}});
       },
       "bf16.enabled is \"auto\", and the checkpoint does not say what it was"},
      {[](Request& r) {
         configure(r, Json::object());
         r.options.stage = 1;
       },
       "the stage asked for is 1, but the new run's is 2"},
      {[](Request& r) {
         r.source.facts.is_pipeline = true;
         r.options.stage = 3;
       },
       "the model is a pipeline, which DeepSpeed does not train at stage 3",
       "--stage 1 and --stage 0 are possible"},
      {[](Request& r) { r.options.sub_group_size = 8; },
       "sub-groups are of stage 3, the new run's stage is 2"},
      {[](Request& r) {
         r.source.facts.checkpoint.values = ValuesFrom::start;
         r.options.stage = 0;
       },
       "old/model.pt: is of stage 0, where shards do not start a run as the weights would",
       "give the weights to the model before deepspeed.initialize"},
      {[](Request& r) {
         r.source.facts.checkpoint.run = RunKind::foreign;
         r.source.add("table", {5}, ParamKind::frozen);
         r.options.stage = 3;
       },
       "old: table: is not trained, and nothing tells whether it is a frozen parameter, which "
       "stage 3 cuts, or a buffer",
       "--like CHECKPOINT takes it from a checkpoint of the new run"},
      {[](Request& r) {
         r.source = KnownRun(0, EngineWrapper::plain);
         r.source.facts.checkpoint.states = StatesTold::no;
         r.source.facts.groups.clear();
         r.options.stage = 1;
       },
       "old/model.pt: optimizer.state: has no names, and the shapes do not tell which parameter "
       "each state belongs to"},
      {[](Request& r) { r.source.facts.groups.clear(); },
       "old: does not tell the optimizer's parameter groups", kGroupsOfLike},
      {[](Request& r) {
         like(r);
         r.like->facts.groups.clear();
       },
       "like: does not tell the optimizer's parameter groups"},
      {[](Request& r) {
         like(r);
         r.like->params.pop_back();
       },
       "like: b: is not there, but is in old",
       "is the checkpoint of the new run's model? names and shapes of its parameters must be "
       "equal"},
      {[](Request& r) {
         like(r);
         r.source.torchs_adam();
       },
       kOfTorch, "set \"torch_adam\": true in the new run"},
      {[](Request& r) {
         like(r);
         r.source.facts.checkpoint.elastic = true;
         r.source.facts.groups[0].settings = {};
         r.like->facts.groups[0].settings = {};
       },
       "like: is elastic and has no hyper-parameters, and neither has the checkpoint for its "
       "groups"},
      {[](Request& r) { r.options.ep = 3; },
       "the checkpoint has no experts for 3 expert-parallel ranks"},
      {[](Request& r) {
         r.source = with_experts();
         r.options.ep = 2;
       },
       "3 data-parallel ranks cannot be shared by 2 expert-parallel ranks",
       "--ep says how many the new run has"},
      {[](Request& r) {
         r.source = with_experts();
         r.source.facts.groups[1].ep_size = 4;
       },
       "3 data-parallel ranks cannot be shared by 4 expert-parallel ranks",
       "--ep says how many the new run has"},
      {[](Request& r) {
         r.source = with_experts();
         r.source.without_config();
         r.options.dp = 4;
       },
       "old/model.pt: ds_config: is needed: it says in which order the ranks share experts",
       kConfigured},
      {[](Request& r) {
         r.source = with_experts();
         r.source.facts.groups[1].unmarked_experts = true;
         r.options.dp = 4;
         r.options.stage = 1;
       },
       "old: has experts in a parameter group that is not marked as theirs, which only stage 0 "
       "takes",
       kGroupsOfLike},
      {[](Request& r) {
         r.source = with_experts();
         r.source.facts.has_expert_layers = true;
         r.options.dp = 4;
         r.options.stage = 3;
       },
       "old: has experts of DeepSpeed's own layers, which it does not train at stage 3",
       "--stage 0, --stage 1 and --stage 2 are possible"},
      {[](Request& r) {
         r.source = with_experts();
         r.source.facts.has_expert_layers = true;
         r.source.facts.autoep_params = {"layer.experts.w1"};
         r.options.dp = 4;
         r.options.stage = 3;
       },
       "old/model.pt: layer.experts.w1: is an expert's parameter that is frozen, which DeepSpeed "
       "does not save at stage 3",
       "--stage 1 and --stage 2 are possible"},
      {[](Request& r) { r.source.facts.groups[0].params = {"a"}; },
       "old/model.pt: b: is in none of the optimizer's parameter groups; whether it is frozen the "
       "files do not tell"},
      {[](Request& r) {
         r.source = KnownRun(0, EngineWrapper::plain);
         r.source.params[1].states.clear();
         r.options.stage = 1;
       },
       "old/model.pt: b: has no optimizer state: it is frozen, or was never given a gradient, and "
       "the file does not tell which",
       kGroupsOfLike},
      {[](Request& r) { r.source.facts.groups.push_back(KnownRun::group({})); },
       "old: has a parameter group, number 1, without parameters that are trained, which "
       "DeepSpeed's stages 1 and 2 cannot have"},
      {[](Request& r) {
         r.source.add("nothing", {0}, ParamKind::frozen);
         r.options.stage = 0;
       },
       "old/model.pt: nothing: has no elements, and the files do not tell whether the optimizer "
       "has it, which stage 0 counts",
       kGroupsOfLike},
      {[](Request& r) {
         // Nothing was stepped, so that all of it may be frozen, as all of the other run is.
         r.source = KnownRun(0, EngineWrapper::plain);
         for (Param& param : r.source.params) param.states.clear();
         like(r, KnownRun(3, EngineWrapper::zero3));
         for (Param& param : r.like->params) param.kind = ParamKind::frozen;
         r.like->facts.groups = {KnownRun::group({})};
       },
       "like/model.pt: has no parameter that an optimizer owns: there is nothing to reshard"},
      {[](Request& r) {
         r.source.without_config();
         r.source.facts.config_error = "is odd";
         r.options.stage = 3;
       },
       "old/model.pt: ds_config: is needed and not understood: is odd", kConfigured},
      {[](Request& r) {
         r.source.facts.checkpoint.elastic = true;
         r.options.stage = 3;
       },
       "old: is elastic and has no hyper-parameters, which only stages 1 and 2 can do without",
       kSettingsOfLike},
      {[](Request& r) {
         r.source.facts.checkpoint.elastic = true;
         r.source.facts.has_base_step = false;
       },
       "old: is elastic and has no base_optimizer_state_step, without which DeepSpeed does not "
       "load it, not even at its own number of ranks",
       kSettingsOfLike},
      {[](Request& r) {
         r.source.set_config({{"zero_optimization", {{"stage", 0}}}});
         r.source.facts.checkpoint.zero_stage = 1;
         r.source.facts.checkpoint.optimizer_wrapper = EngineWrapper::bf16_optimizer;
         r.options.ds_version = "0.18.5";
       },
       "old: is of BF16_Optimizer without ZeRO, which DeepSpeed does not have since 0.17.6",
       "--stage 1 makes it a checkpoint of ZeRO"},
      {[](Request& r) {
         r.source.facts.checkpoint.zero_stage = 1;
         r.source.facts.checkpoint.optimizer_wrapper = EngineWrapper::bf16_optimizer;
         r.options.ds_version = "0.18.2";
       },
       "old: is of BF16_Optimizer, which DeepSpeed 0.17.6 to 0.18.4 does not make"},
      {[](Request& r) {
         r.source.facts.checkpoint.zero_stage = 0;
         r.source.facts.checkpoint.optimizer_wrapper = EngineWrapper::fp16_fused;
         r.source.facts.precision = Precision::bf16;
         r.options.ds_version = "0.17.6";
       },
       "old: is of stage 0 in bf16, for which that release has another optimizer, or saves none",
       "--stage 1 makes it a checkpoint of ZeRO"},
      {[](Request& r) {
         r.source.facts.checkpoint.parameter_alignment = true;
         r.options.ds_version = "0.18.2";
       },
       "old: has parameters that are aligned in the flat vectors, which that release does not "
       "know"},
      {[](Request& r) {
         r.source.without_config();
         r.source.facts.checkpoint.round_robin = true;
       },
       "old/model.pt: ds_config: is not there, but the files are of a run with "
       "round_robin_gradients, which has to be written down",
       kConfigured},
      {[](Request& r) {
         // Each of 2 ranks has 2 and 3 elements: one sub-group, as 5 are fewer than 6.
         r.source = KnownRun(3, EngineWrapper::zero3);
         r.source.set_config({{"zero_optimization", {{"stage", 3}, {"sub_group_size", 6}}}});
         r.source.facts.sub_groups = {1, 1};
       },
       "old/model.pt: param_shapes: is not cut into the sub-groups that a sub_group_size of 6 "
       "makes",
       "--sub-group-size says the new run's"},
      {[](Request& r) {
         r.source = KnownRun(3, EngineWrapper::zero3);
         r.source.facts.state_keys = {"sum"};
       },
       "old: is of torch's Adagrad, whose states DeepSpeed does not load at stage 3, not even its "
       "own"},
      {[](Request& r) {
         r.source.torchs_adam();
         configure(r, {{"optimizer", {{"type", "AdamW"}}}});
       },
       kOfTorch, "set \"torch_adam\": true in the new run"},
      {[](Request& r) {
         configure(r, {{"optimizer", {{"type", "SGD"}}}});
       },
       "the new run's optimizer is sgd, which does not keep the states of the checkpoint: "
       "'exp_avg', 'exp_avg_sq'"},
      {[](Request& r) {
         configure(r, {{"checkpoint", {{"load_universal", true}}}});
       },
       "checkpoint.load_universal is set: DeepSpeed would look for a universal checkpoint"},
      {[](Request& r) {
         configure(r, {{"tensor_parallel", {{"autotp_size", 2}}}});
       },
       "tensor_parallel.autotp_size is 2: the new run would look for slices of 2 tensor-parallel "
       "ranks"},
  };
}

// The error of a request that must be refused.
std::optional<Error> refusal_of(Request& request) {
  try {
    request.target();
  } catch (const Error& error) {
    return error;
  }
  return std::nullopt;
}

TEST(ReshardRefusals, EveryRowIsReachedAndSaysWhereAndWhy) {
  const std::vector<RefusedCase> cases = refused_cases();
  ASSERT_EQ(cases.size(), refusals().size());
  for (size_t i = 0; i < cases.size(); ++i) {
    SCOPED_TRACE(cases[i].what);
    Request request;
    cases[i].change(request);
    const std::optional<Error> error = refusal_of(request);
    ASSERT_TRUE(error.has_value());
    EXPECT_EQ(error->what(), cases[i].what);
    EXPECT_EQ(error->hint(), cases[i].hint);
    EXPECT_EQ(error->kind(), refusals()[i].kind);
  }
}

TEST(ReshardRefusals, StandInTheOrderOfTheSteps) {
  for (size_t i = 1; i < refusals().size(); ++i) {
    EXPECT_LE(refusals()[i - 1].after, refusals()[i].after) << i;
  }
}

// The exit status depends on what the user can do about a refusal.
TEST(ReshardRefusals, OptionsAreUsageModelsInconsistentAndFilesUnsupported) {
  const auto kind = [](const std::function<void(Request&)>& change) {
    Request request;
    change(request);
    return refusal_of(request).value().kind();
  };
  EXPECT_EQ(kind([](Request& r) { r.options.ep = 2; }), ErrorKind::usage);
  EXPECT_EQ(kind([](Request& r) {
              like(r);
              r.like->add("c", {1});
              r.like->facts.groups[0].params.push_back("c");
            }),
            ErrorKind::inconsistent);
  EXPECT_EQ(kind([](Request& r) { r.source.facts.groups.clear(); }), ErrorKind::unsupported);
}

std::string refused(const std::function<void(Request&)>& change) {
  Request request;
  change(request);
  const std::optional<Error> error = refusal_of(request);
  return error ? error->what() : "nothing";
}

TEST(ReshardRefusals, ModelsAreTheSameIfNamesShapesAndWhatIsTrainedAre) {
  EXPECT_EQ(refused([](Request& r) { like(r); }), "nothing");
  EXPECT_EQ(refused([](Request& r) {
              like(r);
              r.like->add("more", {1}, ParamKind::buffer);
            }),
            "old: more: is not there, but is in like");
  EXPECT_EQ(refused([](Request& r) {
              like(r);
              r.like->params[0].weight = TensorSource::zeros(DType::float32, {2, 2});
            }),
            "like: a: has shape [2, 2], in old [4]");
  EXPECT_EQ(refused([](Request& r) {
              like(r);
              r.like->params[0].kind = ParamKind::frozen;
            }),
            "like: a: is not trained, but is in old");
  EXPECT_EQ(refused([](Request& r) {
              like(r);
              r.source.params[0].alias_of = "b";
            }),
            "old: a: is not trained, but is in like");
  // The first that differs, whatever it is that does.
  EXPECT_EQ(refused([](Request& r) {
              like(r);
              r.like->params[0].weight = TensorSource::zeros(DType::float32, {2, 2});
              r.like->params.pop_back();
            }),
            "like: a: has shape [2, 2], in old [4]");
}

TEST(ReshardRefusals, MembersAreTrainedParametersInOneGroupEach) {
  EXPECT_EQ(refused([](Request& r) { r.source.facts.groups.push_back(KnownRun::group({"a"})); }),
            "old/model.pt: a: is in two parameter groups");
  EXPECT_EQ(refused([](Request& r) {
              r.source.add("buffer", {1}, ParamKind::buffer);
              r.source.facts.groups[0].params.push_back("buffer");
            }),
            "old/model.pt: buffer: is in a parameter group, but is not a trained parameter");
  EXPECT_EQ(refused([](Request& r) { r.source.facts.groups[0].params.push_back("none"); }),
            "old/model.pt: none: is in a parameter group, but is not a trained parameter");
  // Under the other run's groups what has no states was frozen.
  EXPECT_EQ(refused([](Request& r) {
              r.source = KnownRun(0, EngineWrapper::plain);
              r.source.params[1].states.clear();
              like(r, KnownRun(1, EngineWrapper::zero12));
              r.like->params[1].kind = ParamKind::frozen;
              r.like->facts.groups = {KnownRun::group({"a"})};
            }),
            "nothing");
}

TEST(ReshardRefusals, WhatDeepSpeedRefusesIsRefusedInItsPlace) {
  EXPECT_EQ(refused([](Request& r) {
              configure(r, {{"fp16", {{"enabled", true}}}, {"bf16", {{"enabled", true}}}});
            }),
            "fp16 and bf16 are both enabled");
  EXPECT_EQ(refused([](Request& r) {
              configure(r, {{"zero_optimization", {{"stage", 2}, {"legacy_stage1", true}}}});
            }),
            "zero_optimization.legacy_stage1: DeepSpeed has no such stage any more");
}

// The optimizers of runtime/config.py DEEPSPEED_OPTIMIZERS by the states that they keep.
TEST(ReshardRefusals, OptimizersAreToldByTheirStates) {
  const auto under = [](const char* type, Names keys) {
    return refused([&](Request& r) {
      r.source.facts.state_keys = std::move(keys);
      configure(r, {{"optimizer", {{"type", type}}}});
    });
  };
  const Names adam{"exp_avg", "exp_avg_sq"};
  for (const char* type : {"Adam", "AdamW", "Lamb"}) {
    EXPECT_EQ(under(type, adam), "nothing") << type;
    EXPECT_NE(under(type, {"momentum_buffer"}), "nothing") << type;
    EXPECT_NE(under(type, {"exp_avg"}), "nothing") << type;
  }
  EXPECT_EQ(under("Lion", {"exp_avg"}), "nothing");
  EXPECT_NE(under("Lion", adam), "nothing");
  EXPECT_EQ(under("Muon", {"exp_avg", "exp_avg_sq", "momentum_buffer"}), "nothing");
  EXPECT_NE(under("Muon", adam), "nothing");
  EXPECT_EQ(under("SGD", {"momentum_buffer"}), "nothing");
  EXPECT_EQ(under("Adagrad", {"sum"}), "nothing");
  EXPECT_NE(under("Adagrad", adam), "nothing");
  // Nothing was stepped yet, or the program has its own.
  EXPECT_EQ(under("SGD", {}), "nothing");
  EXPECT_EQ(under("Mine", adam), "nothing");
}

}  // namespace
}  // namespace dsckpt
