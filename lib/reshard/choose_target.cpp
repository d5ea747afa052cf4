#include <algorithm>
#include <array>
#include <set>
#include <utility>

#include "reshard/choice.h"
#include "reshard/experts.h"
#include "reshard/refusals.h"
#include "reshard/target.h"

namespace dsckpt {
namespace {

using Json = nlohmann::ordered_json;

constexpr const char* kExpertParallel = "expert_parallel";  // AutoEP
constexpr const char* kDataBeforeExperts = "use_data_before_expert_parallelism";

void choose_config(Choice& choice) {
  const auto& given = choice.options.ds_config;
  choice.config = given ? with_autos_from(*given, choice.source.config.value_or(Json::object()))
                        : choice.reference().config;
}

void choose_engine(Choice& choice) {
  choice.engine =
      choice.options.ds_config ? engine_config(*choice.config) : choice.reference().engine;
  choice.target.engine = choice.engine.value_or(EngineConfig{});
}

void choose_release(Choice& choice) {
  const std::string& asked = choice.options.ds_version;
  const std::string& version = asked.empty() ? choice.reference().checkpoint.ds_version : asked;
  choice.target.release = release_of(version);
  if (version != choice.source.checkpoint.ds_version) choice.target.ds_version = version;
}

void choose_stage(Choice& choice) {
  choice.target.stage = choice.options.stage.value_or(choice.configured_stage());
  choice.target.engine.zero_stage = choice.target.stage;
}

// Those of `like` get the checkpoint's hyper-parameters where it has a group of the same members.
void choose_groups(Choice& choice) {
  choice.target.groups = choice.reference().groups;
  if (choice.like == nullptr) return;
  for (RunGroup& group : choice.target.groups) {
    if (const RunGroup* own = choice.own_group(group)) group.settings = own->settings;
  }
}

// Every group keeps the number of ranks that its experts are spread over, unless --ep says another.
void choose_experts(Choice& choice) {
  ReshardTarget& target = choice.target;
  target.expert_optimizers = target.stage == 0 && choice.source.has_expert_layers;
  if (!choice.has_experts()) return;
  if (choice.options.ep) {
    ExpertNames(choice.source.params.all(), choice.source.folder)
        .regroup(target.groups, *choice.options.ep);
  }
  for (const RunGroup& group : target.groups) target.ep = std::max(target.ep, group.ep_size);
  target.data_before_experts = choice.config && choice.config->is_object() &&
                               choice.config->value(kDataBeforeExperts, Json()) == true;
}

// ZeRO leaves parameters without elements out; a plain optimizer counts them.
void choose_members(Choice& choice) {
  if (choice.target.stage == 0) return;
  for (RunGroup& group : choice.target.groups) {
    if (group.has_experts()) continue;
    std::erase_if(group.params, [&](const std::string& name) {
      const Param* param = choice.source.params.find(name);
      return param != nullptr && param->weight.numel() == 0;
    });
  }
}

void choose_precision(Choice& choice) {
  ReshardTarget& target = choice.target;
  target.precision =
      choice.options.ds_config ? target.engine.precision : choice.reference().precision;
  target.engine.precision = target.precision;
  target.saved_param_dtype = choice.source.param_dtype;
  const bool changes = target.precision != choice.source.precision;
  if (changes) target.param_dtype = dtype_of(target.precision);
  target.new_loss_scaler = changes || choice.source.checkpoint.from_weights();
}

// FusedAdam's param_groups have what DeepSpeed's optimizers take, but nothing of torch's.
bool is_fused_adam(const std::vector<RunGroup>& groups) {
  return std::any_of(groups.begin(), groups.end(), [](const RunGroup& group) {
    return group.settings.bias_correction && !group.settings.amsgrad;
  });
}

// DeepSpeed's defaults, where the files have a path for their configuration.
EngineWrapper wrapper_without_config(const ReshardTarget& target) {
  if (target.stage == 3) return EngineWrapper::zero3;
  if (target.stage != 0) return EngineWrapper::zero12;
  if (target.precision == Precision::fp32) return EngineWrapper::plain;
  return is_fused_adam(target.groups) ? EngineWrapper::fp16_fused : EngineWrapper::fp16_unfused;
}

void choose_wrapper(Choice& choice) {
  ReshardTarget& target = choice.target;
  const CheckpointFacts& known = choice.reference().checkpoint;
  target.elastic = choice.source.checkpoint.elastic && choice.like == nullptr;
  if (target.is_zero12() && is_before(target.release, kRigidStates)) target.elastic = true;
  if (!choice.options.ds_config && target.stage == known.zero_stage && !known.is_universal()) {
    target.wrapper = known.optimizer_wrapper;
  } else if (choice.engine) {
    target.wrapper = wrapper_of(
        target.engine, target.engine.uses_fused_adam().value_or(is_fused_adam(target.groups)));
  } else {
    target.wrapper = wrapper_without_config(target);
  }
}

void choose_layout(Choice& choice) {
  ReshardTarget& target = choice.target;
  const CheckpointFacts& known = choice.reference().checkpoint;
  target.sub_group_size =
      choice.options.sub_group_size.value_or(static_cast<uint64_t>(target.engine.sub_group_size));
  if (target.wrapper != EngineWrapper::zero12) return;
  const bool in_files = choice.layout_is_in_files();
  target.round_robin = in_files ? known.round_robin : target.engine.round_robin_gradients;
  target.parameter_alignment =
      (in_files && known.parameter_alignment) || target.engine.parameter_alignment;
}

template <typename T>
void set_zero(Json& config, const char* key, T value) {
  Json& zero = config["zero_optimization"];
  if (!zero.is_object()) zero = Json::object();
  zero[key] = value;
}

// The new files say the new run's configuration; nullopt: as the old ones.
std::optional<Json> new_config(const Choice& choice) {
  const TargetOptions& options = choice.options;
  const ReshardTarget& target = choice.target;
  if (choice.is_other_run() && choice.config) {
    Json config = *choice.config;
    if (options.sub_group_size) set_zero(config, "sub_group_size", *options.sub_group_size);
    return config;
  }
  if (!choice.source.engine) return std::nullopt;
  Json config = *choice.source.config;
  const bool new_stage = target.stage != choice.source.checkpoint.zero_stage;
  const bool new_ep =
      options.ep && config.contains(kExpertParallel) && config[kExpertParallel].is_object();
  // An engine with its optimizer on NVMe does not read optimizer-states files: engine.py
  // load_checkpoint.
  const bool leaves_nvme =
      !choice.is_other_run() && target.engine.offload_optimizer == OffloadDevice::nvme;
  const bool new_slices = choice.source.checkpoint.regridded && target.engine.autotp_size > 0;
  if (!new_stage && !new_ep && !options.sub_group_size && !leaves_nvme && !new_slices) {
    return std::nullopt;
  }
  if (new_ep) config[kExpertParallel]["autoep_size"] = target.ep;
  if (new_stage) set_zero(config, "stage", target.stage);
  if (options.sub_group_size) set_zero(config, "sub_group_size", *options.sub_group_size);
  if (leaves_nvme) {
    Json& device = config["zero_optimization"]["offload_optimizer"];
    device["device"] = "cpu";
    device.erase("nvme_path");
  }
  return config;
}

struct Decision {
  Step step;
  void (*decide)(Choice&);
};

constexpr std::array kDecisions{
    Decision{Step::release, choose_release}, Decision{Step::config, choose_config},
    Decision{Step::engine, choose_engine},   Decision{Step::stage, choose_stage},
    Decision{Step::groups, choose_groups},   Decision{Step::experts, choose_experts},
    Decision{Step::members, choose_members}, Decision{Step::precision, choose_precision},
    Decision{Step::wrapper, choose_wrapper}, Decision{Step::layout, choose_layout},
};

}  // namespace

bool Choice::keeps_plain_optimizer() const {
  // A 16-bit wrapper's state has masters, and given weights would have to go among them.
  const bool has_old_masters = source.checkpoint.has_given_weights() &&
                               source.checkpoint.optimizer_wrapper != EngineWrapper::plain;
  return !has_old_masters && target.stage == 0 && source.checkpoint.zero_stage == 0 &&
         !source.has_expert_layers && !source.checkpoint.regridded && !is_other_run() &&
         !source.checkpoint.is_universal() && !source.checkpoint.from_weights();
}

bool Choice::layout_is_in_files() const {
  const CheckpointFacts& known = reference().checkpoint;
  return !options.ds_config && !known.is_universal() &&
         known.optimizer_wrapper == EngineWrapper::zero12;
}

const std::string& Choice::config_error() const {
  return like != nullptr && !like->config_error.empty() ? like->config_error : source.config_error;
}

const RunGroup* Choice::own_group(const RunGroup& group) const {
  const ExpertNames experts(source.params.all(), source.folder);
  const auto members_of = [&](const RunGroup& each) {
    const std::vector<std::string_view> names = experts.members_of(each);
    return std::set<std::string_view>(names.begin(), names.end());
  };
  const std::set<std::string_view> members = members_of(group);
  for (const RunGroup& own : source.groups) {
    if (own.settings.known && members_of(own) == members) return &own;
  }
  return nullptr;
}

bool Choice::has_experts() const {
  return std::any_of(target.groups.begin(), target.groups.end(),
                     [](const RunGroup& group) { return group.has_experts(); });
}

ReshardTarget choose_target(const RunFacts& source, const RunFacts* like,
                            const TargetOptions& options, std::vector<std::string>& notes) {
  Choice choice{.source = source, .like = like, .options = options};
  choice.target.dp = options.dp;
  choice.target.mp_rank = source.mp_rank;
  refuse(choice, Step::source);
  for (const Decision& decision : kDecisions) {
    decision.decide(choice);
    refuse(choice, decision.step);
  }
  for (std::string& note : notes_of(choice)) notes.push_back(std::move(note));
  choice.target.ds_config = new_config(choice);
  return std::move(choice.target);
}

ReshardTarget reshard_target(const Checkpoint& source, const TargetOptions& options,
                             std::vector<std::string>& notes) {
  const RunFacts facts = run_facts(source);
  std::optional<RunFacts> like;
  if (options.like != nullptr) like = run_facts(*options.like);
  return choose_target(facts, like ? &*like : nullptr, options, notes);
}

}  // namespace dsckpt
