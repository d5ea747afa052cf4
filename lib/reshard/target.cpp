#include "reshard/target.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <set>
#include <span>
#include <string_view>
#include <tuple>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "base/error.h"
#include "deepspeed/keys.h"
#include "deepspeed/shard_name.h"
#include "deepspeed/zero_layout.h"
#include "job/run_plan.h"
#include "reshard/experts.h"

namespace dsckpt {
using pickle::Kind;
using pickle::Value;
namespace {

using Json = nlohmann::ordered_json;

constexpr const char* kGroupsHint =
    "--like CHECKPOINT takes the groups from a checkpoint of the new run";
constexpr const char* kConfigHint = "--ds-config says the new run's";

constexpr const char* kDataFirst = "use_data_before_expert_parallelism";
constexpr const char* kExpertParallel = "expert_parallel";  // AutoEP

std::string file_of(const Checkpoint& checkpoint) {
  return checkpoint.model_files().front().path.string();
}

Value root_of(const Checkpoint& checkpoint) {
  return checkpoint.model_files().front().archive->root();
}

// The world that `checkpoint` is, or 0.
uint32_t mp_rank_of(const Checkpoint& checkpoint) {
  const auto name = parse_shard_name(checkpoint.model_files().front().path.filename().string());
  return name ? name->mp_rank : 0;
}

DType dtype_of(Precision precision) {
  switch (precision) {
    case Precision::fp16:
      return DType::float16;
    case Precision::bf16:
      return DType::bfloat16;
    case Precision::fp32:
      break;
  }
  return DType::float32;
}

bool is_trained(const Param& param) {
  return param.kind == ParamKind::trainable && param.alias_of.empty();
}

const Param& first_trained(const Checkpoint& checkpoint) {
  const auto& params = checkpoint.params();
  const auto found = std::find_if(params.begin(), params.end(), is_trained);
  if (found == params.end()) {
    throw UnsupportedError({.file = file_of(checkpoint)},
                           "has no parameter that an optimizer owns: there is nothing to reshard");
  }
  return *found;
}

// FusedAdam's param_groups have what DeepSpeed's optimizers take, but nothing of torch's.
bool is_fused_adam(const std::vector<ParamGroup>& groups) {
  return std::any_of(groups.begin(), groups.end(), [](const ParamGroup& group) {
    const Value& settings = group.settings.value;
    return !settings.find_or_none("bias_correction").is_none() &&
           settings.find_or_none("amsgrad").is_none();
  });
}

// Which of DeepSpeed's precisions was on, whatever type the model's own parameters have: names of
// files and wrappers tell, and the configuration where they do not.
Precision precision_of(const Checkpoint& checkpoint, const std::optional<EngineConfig>& engine) {
  const CheckpointFacts& facts = checkpoint.facts();
  const DType dtype = param_dtype_of(checkpoint);
  const Precision by_type = dtype == DType::bfloat16  ? Precision::bf16
                            : dtype == DType::float16 ? Precision::fp16
                                                      : Precision::fp32;
  const Precision otherwise = engine ? engine->precision : by_type;
  if (facts.universal) return otherwise;
  if (facts.zero_stage == 0)
    return facts.optimizer_wrapper == EngineWrapper::plain ? Precision::fp32 : by_type;
  // Old releases have no such names.
  const bool bf16 = checkpoint.optim_files().front().path.filename().string().starts_with("bf16_");
  return bf16 ? Precision::bf16 : otherwise;
}

std::vector<std::string> state_keys(const Checkpoint& checkpoint) {
  std::set<std::string> keys;
  for (const Param& param : checkpoint.params()) {
    for (const ParamState& state : param.states) keys.insert(state.key);
  }
  return {keys.begin(), keys.end()};
}

std::string quoted(const std::string& text) {
  return "'" + text + "'";
}

class TargetBuilder {
 public:
  TargetBuilder(const Checkpoint& source, const ReshardOptions& options,
                std::vector<std::string>& notes)
      : source_(source),
        options_(options),
        reference_(options.like != nullptr ? *options.like : source),
        notes_(notes) {}

  ReshardTarget build() {
    check_source();
    target_.dp = options_.dp;
    target_.mp_rank = mp_rank_of(source_);
    choose_config();
    choose_stage();
    choose_groups();
    choose_precision();
    choose_wrapper();
    choose_layout();
    check_optimizer();
    check_config();
    write_config();
    leave_nvme();
    return std::move(target_);
  }

 private:
  const CheckpointFacts& facts() const { return source_.facts(); }

  void note(std::string text) { notes_.push_back(std::move(text)); }

  void check_source() const {
    if (facts().model_parallel && (facts().zero_stage == 0 || facts().universal)) {
      throw UnsupportedError({.file = source_.tag_folder().string()},
                             "is of a model that is split over pipeline, tensor-parallel or "
                             "expert-parallel ranks, and not of ZeRO stage 1, 2 or 3; such models "
                             "are not resharded");
    }
    if (facts().model_parallel && options_.like != nullptr) {
      throw UsageError(
          "the model is split over pipeline, tensor-parallel or expert-parallel ranks, whose "
          "groups "
          "are kept: --like is for whole models");
    }
    first_trained(source_);
    if (facts().from_weights) check_start();
    if (source_.wrapper_state().archive == nullptr) {
      throw UnsupportedError({.file = file_of(source_)},
                             "has no optimizer state: there is no training to go on with");
    }
  }

  void check_start() const {
    if (source_.model_files().empty()) {
      throw std::move(UsageError("weights do not tell the optimizer and its parameter groups"))
          .with_hint("--like CHECKPOINT takes them from a checkpoint of the new run");
    }
    if (facts().elastic) {
      throw UnsupportedError({.file = file_of(source_)},
                             "is elastic and has no hyper-parameters to start with");
    }
  }

  // Whether anything but `source` says what the new run is like.
  bool is_other_run() const { return options_.ds_config || options_.like != nullptr; }

  // The configuration that says what the new engine is like: the new run's, else the old one's.
  void choose_config() {
    std::tie(saved_, saved_engine_) = read_saved(source_);
    if (options_.ds_config) {
      config_ = with_autos_from(*options_.ds_config, saved_.value_or(Json::object()));
      check_autos();
      engine_ = engine_config(*config_);
    } else if (options_.like != nullptr) {
      std::tie(config_, engine_) = read_saved(*options_.like);
    } else {
      config_ = saved_;
      engine_ = saved_engine_;
    }
    target_.engine = engine_.value_or(EngineConfig{});
  }

  // Hugging Face fills "auto" in when the run starts; what matters here has to be known.
  void check_autos() const {
    constexpr std::array<std::pair<const char*, const char*>, 5> kNeeded{
        {{"zero_optimization", "stage"},
         {"zero_optimization", "round_robin_gradients"},
         {"zero_optimization", "sub_group_size"},
         {"bf16", "enabled"},
         {"fp16", "enabled"}}};
    for (const auto& [section, key] : kNeeded) {
      const auto found = config_->find(section);
      if (found == config_->end() || !found->is_object()) continue;
      const auto value = found->find(key);
      if (value == found->end() || *value != "auto") continue;
      throw UsageError(std::string(section) + "." + key +
                       " is \"auto\", and the checkpoint does not say what it was");
    }
  }

  // A run may have worked with a configuration that is no JSON, or has values that are not of the
  // documented types. As long as the files tell everything, it is not needed.
  std::pair<std::optional<Json>, std::optional<EngineConfig>> read_saved(
      const Checkpoint& checkpoint) {
    std::optional<Json> config;
    try {
      config = saved_ds_config(checkpoint);
      if (config) return {config, engine_config(*config)};
    } catch (const Error& error) {
      unread_ = error.message();
      note("the checkpoint's ds_config is not understood (" + unread_ +
           "); what the files themselves tell is used");
    }
    return {config, std::nullopt};
  }

  // Throws where the files do not tell and the configuration, which would, is not understood.
  void need_config() const {
    if (engine_ || unread_.empty()) return;
    throw std::move(
        UnsupportedError({.file = file_of(reference_), .member = std::string(keys::kDsConfig)},
                         "is needed and not understood: " + unread_))
        .with_hint(kConfigHint);
  }

  void choose_stage() {
    const int configured =
        options_.ds_config ? target_.engine.zero_stage : reference_.facts().zero_stage;
    target_.stage = options_.stage.value_or(configured);
    if (target_.stage != configured && is_other_run()) {
      throw UsageError("the stage asked for is " + std::to_string(*options_.stage) +
                       ", but the new run's is " + std::to_string(configured));
    }
    if (facts().model_parallel && target_.stage != facts().zero_stage) {
      throw UsageError(
          "the model is split over pipeline, tensor-parallel or expert-parallel ranks, "
          "which keep their stage, " +
          std::to_string(facts().zero_stage));
    }
    if (options_.sub_group_size && target_.stage != 3) {
      throw UsageError("sub-groups are of stage 3, the new run's stage is " +
                       std::to_string(target_.stage));
    }
    if (facts().from_weights && target_.stage == 0) {
      throw std::move(UnsupportedError({.file = file_of(reference_)},
                                       "is of stage 0, where a run does not start from shards as "
                                       "it would from the weights"))
          .with_hint("give the weights to the model before deepspeed.initialize");
    }
    target_.engine.zero_stage = target_.stage;
  }

  void choose_groups() {
    const std::vector<ParamGroup>& own = source_.groups();
    // Without ZeRO all ranks have everything, and the optimizer can be copied as it is.
    const bool as_it_is = target_.stage == 0 && facts().zero_stage == 0 && !is_other_run() &&
                          !facts().universal && !facts().from_weights;
    if (options_.like == nullptr) {
      if (own.empty() && !as_it_is) {
        if (!facts().states_assigned) throw unassigned_states(source_);
        throw std::move(UnsupportedError({.file = source_.tag_folder().string()},
                                         "does not tell the optimizer's parameter groups"))
            .with_hint(kGroupsHint);
      }
      target_.groups = own;
    } else {
      if (!facts().states_assigned) throw unassigned_states(source_);
      take_groups_of(*options_.like);
    }
    choose_experts();
    if (!target_.groups.empty()) check_members();
    if (target_.stage != 0 && facts().zero_stage == 0) check_stateless();
    drop_empty_params();
  }

  // Every group keeps the number of ranks that its experts are spread over, unless --ep says
  // another.
  void choose_experts() {
    const bool any = std::any_of(target_.groups.begin(), target_.groups.end(), is_expert_group);
    if (options_.ep && !any) {
      throw UsageError("the checkpoint has no experts for " + std::to_string(*options_.ep) +
                       " expert-parallel ranks");
    }
    if (!any) return;
    if (options_.ep) {
      if (target_.dp % *options_.ep != 0) throw uneven_experts(*options_.ep);
      ExpertNames(source_).regroup(target_.groups, *options_.ep);
    }
    for (const ParamGroup& group : target_.groups) {
      if (target_.dp % group.ep_size != 0) throw uneven_experts(group.ep_size);
      target_.ep = std::max(target_.ep, group.ep_size);
    }
    target_.data_before_experts = data_before_experts();
  }

  // The order in which the ranks share the experts.
  bool data_before_experts() const {
    if (config_ && config_->is_object()) return config_->value(kDataFirst, Json()) == true;
    const bool matters = std::any_of(
        target_.groups.begin(), target_.groups.end(),
        [&](const ParamGroup& group) { return group.ep_size > 1 && group.ep_size < target_.dp; });
    if (!matters) return false;
    throw std::move(
        UnsupportedError({.file = file_of(source_), .member = std::string(keys::kDsConfig)},
                         "is needed: it says in which order the ranks share experts"))
        .with_hint(kConfigHint);
  }

  UsageError uneven_experts(uint32_t ep) const {
    return std::move(UsageError(std::to_string(target_.dp) +
                                " data-parallel ranks cannot be shared by " + std::to_string(ep) +
                                " expert-parallel ranks"))
        .with_hint("--ep says how many the new run has");
  }

  static bool has_bias_correction(const Checkpoint& checkpoint) {
    const auto& groups = checkpoint.groups();
    return std::any_of(groups.begin(), groups.end(), [](const ParamGroup& group) {
      return !group.settings.value.find_or_none("bias_correction").is_none();
    });
  }

  // DeepSpeed's own Adam reads a setting that torch's does not have.
  void check_bias_correction(const Checkpoint& like) const {
    if (has_bias_correction(like) && !source_.facts().elastic && !has_bias_correction(source_)) {
      throw no_bias_correction();
    }
  }
  static UsageError no_bias_correction() {
    return std::move(UsageError("the new run's optimizer is DeepSpeed's own Adam, the "
                                "checkpoint's is torch's, whose hyper-parameters have no "
                                "bias_correction: DeepSpeed would stop at the first step"))
        .with_hint("set \"torch_adam\": true in the new run");
  }

  // By their names in the checkpoint.
  std::vector<std::string> members_of(const ParamGroup& group) const {
    if (!is_expert_group(group)) return group.params;
    const ExpertNames names(source_);
    std::vector<std::string> members;
    std::unordered_set<std::string> seen;
    for (const std::string& name : group.params) {
      for (uint32_t rank = 0; rank < group.ep_size; ++rank) {
        const std::string& global = names.global(name, rank, group.ep_size).name;
        if (seen.insert(global).second) members.push_back(global);
      }
    }
    return members;
  }

  // Every parameter that is trained has to be in one group, and nothing else in any.
  void check_members() const {
    std::unordered_set<std::string> members;
    for (const ParamGroup& group : target_.groups) {
      for (const std::string& name : members_of(group)) {
        const Param* param = source_.find(name);
        const Where where{.file = file_of(source_), .tensor = name};
        if (param == nullptr || !is_trained(*param)) {
          throw UnsupportedError(where, "is in a parameter group, but is no trained parameter");
        }
        if (!members.insert(name).second) {
          throw UnsupportedError(where, "is in two parameter groups");
        }
      }
    }
    for (const Param& param : source_.params()) {
      if (!is_trained(param) || members.contains(param.name)) continue;
      if (options_.like != nullptr && param.states.empty()) continue;  // frozen there
      throw UnsupportedError({.file = file_of(source_), .tensor = param.name},
                             "is in none of the optimizer's parameter groups; whether it is frozen "
                             "the files do not tell");
    }
  }

  // torch's own optimizer also has the frozen parameters it was given, and nothing of them.
  void check_stateless() const {
    const auto has_states = [](const Param& param) {
      return !param.states.empty() || param.step.archive != nullptr;
    };
    const auto& params = source_.params();
    if (std::none_of(params.begin(), params.end(), has_states)) return;
    for (const ParamGroup& group : target_.groups) {
      for (const std::string& name : group.params) {
        if (has_states(*source_.find(name))) continue;
        throw std::move(UnsupportedError({.file = file_of(source_), .tensor = name},
                                         "has no optimizer state: it is frozen, or was never given "
                                         "a gradient, and the file does not tell which"))
            .with_hint(kGroupsHint);
      }
    }
  }

  void take_groups_of(const Checkpoint& like) {
    if (like.groups().empty()) {
      throw UnsupportedError({.file = like.tag_folder().string()},
                             "does not tell the optimizer's parameter groups");
    }
    check_same_params(like);
    target_.groups = like.groups();
    const auto same_members = [](const ParamGroup& a, const ParamGroup& b) {
      return std::set<std::string>(a.params.begin(), a.params.end()) ==
             std::set<std::string>(b.params.begin(), b.params.end());
    };
    bool kept = true;
    check_bias_correction(like);
    for (ParamGroup& group : target_.groups) {
      const auto& own = source_.groups();
      const auto found = std::find_if(own.begin(), own.end(), [&](const ParamGroup& other) {
        return same_members(group, other) && other.settings.archive != nullptr;
      });
      kept = kept && found != own.end();
      if (found != own.end()) group.settings = found->settings;
      if (group.settings.archive == nullptr) {
        throw UnsupportedError({.file = like.tag_folder().string()},
                               "is elastic and has no hyper-parameters, and neither has the "
                               "checkpoint for its groups");
      }
    }
    if (!kept) {
      note("hyper-parameters are those of " + like.tag_folder().string() +
           " for the groups that the checkpoint does not have");
    }
  }

  // Both have to be of one model, and to train the same parameters.
  void check_same_params(const Checkpoint& like) const {
    const auto compare = [](const Checkpoint& a, const Checkpoint& b) {
      for (const Param& param : a.params()) {
        const Param* other = b.find(param.name);
        const Where where{.file = b.tag_folder().string(), .tensor = param.name};
        if (other == nullptr) {
          throw InconsistentError(where, "is not there, but is in " + a.tag_folder().string());
        }
        if (!is_trained(param)) continue;
        // A plain optimizer lists frozen parameters, too, and has no states of them.
        const bool maybe_frozen =
            a.facts().zero_stage == 0 && param.states.empty() && param.step.archive == nullptr;
        if (other->kind == ParamKind::frozen && maybe_frozen) continue;
        if (other->kind != ParamKind::trainable || !other->alias_of.empty()) {
          throw InconsistentError(where, "is not trained, but is in " + a.tag_folder().string());
        }
        if (other->weight.shape() != param.weight.shape()) {
          throw InconsistentError(where, "has shape " + to_text(other->weight.shape()) + ", in " +
                                             a.tag_folder().string() + " " +
                                             to_text(param.weight.shape()));
        }
      }
    };
    compare(source_, like);
    compare(like, source_);
  }

  // ZeRO leaves parameters without elements out; a plain optimizer counts them.
  void drop_empty_params() {
    if (target_.stage != 0) {
      for (ParamGroup& group : target_.groups) {
        if (is_expert_group(group)) continue;
        std::erase_if(group.params, [&](const std::string& name) {
          const Param* param = source_.find(name);
          return param != nullptr && param->weight.numel() == 0;
        });
      }
      return check_empty_groups();
    }
    if (facts().zero_stage == 0 || options_.like != nullptr) return;
    for (const Param& param : source_.params()) {
      if (param.kind == ParamKind::frozen && param.weight.numel() == 0) {
        throw std::move(UnsupportedError({.file = file_of(source_), .tensor = param.name},
                                         "has no elements, and the files do not tell whether the "
                                         "optimizer has it, which stage 0 counts"))
            .with_hint(kGroupsHint);
      }
    }
  }

  // Stage 3 keeps a group of frozen parameters only, as torch does; a flat vector cannot be empty.
  void check_empty_groups() const {
    if (target_.stage == 3) return;
    for (size_t g = 0; g < target_.groups.size(); ++g) {
      if (!target_.groups[g].params.empty()) continue;
      throw UnsupportedError({.file = source_.tag_folder().string()},
                             "has a parameter group, number " + std::to_string(g) +
                                 ", without parameters that are trained, which DeepSpeed's stages "
                                 "1 and 2 cannot have");
    }
  }

  void choose_precision() {
    const Precision old = precision_of(source_, saved_engine_);
    const Precision now =
        options_.ds_config ? target_.engine.precision : precision_of(reference_, engine_);
    target_.engine.precision = now;
    target_.bf16_names = now == Precision::bf16;
    target_.fp16 = now == Precision::fp16;
    target_.new_loss_scaler = facts().from_weights;
    if (now == old) return;
    if (facts().model_parallel) {
      throw UsageError("the precision changes from " + std::string(to_string(old)) + " to " +
                       std::string(to_string(now)) +
                       ", but the files of layers and experts are copied as they are");
    }
    target_.param_dtype = dtype_of(now);
    target_.new_loss_scaler = true;
    note("the precision changes from " + std::string(to_string(old)) + " to " +
         std::string(to_string(now)) +
         ": the parameters are rounded from the masters, and the loss scale starts anew");
  }

  void choose_wrapper() {
    const bool same_stage = target_.stage == reference_.facts().zero_stage;
    if (!options_.ds_config && same_stage && !reference_.facts().universal) {
      target_.wrapper = reference_.facts().optimizer_wrapper;
    } else {
      need_config();
      const bool fused = is_fused_adam(target_.groups);
      target_.wrapper =
          engine_ ? wrapper_of(target_.engine, target_.engine.uses_fused_adam().value_or(fused))
                  : wrapper_without_config();
    }
    target_.elastic = facts().elastic && options_.like == nullptr;
    if (target_.elastic) check_elastic();
    note_plain_optimizer();
  }

  // torch's own optimizer has what it was given, DeepSpeed's wrappers only what is trained.
  void note_plain_optimizer() {
    if (target_.wrapper != EngineWrapper::plain || facts().zero_stage == 0) return;
    const auto& params = source_.params();
    const bool frozen = std::any_of(params.begin(), params.end(), [](const Param& param) {
      return param.kind == ParamKind::frozen;
    });
    if (!frozen) return;
    note(
        "stage 0 in fp32 counts every parameter that the optimizer is given: give it only those "
        "that are trained");
  }

  // DeepSpeed's defaults, where the files have a path for their configuration.
  EngineWrapper wrapper_without_config() const {
    if (target_.stage == 3) return EngineWrapper::zero3;
    if (target_.stage != 0) return EngineWrapper::zero12;
    if (target_.engine.precision == Precision::fp32) return EngineWrapper::plain;
    return is_fused_adam(target_.groups) ? EngineWrapper::fp16_fused : EngineWrapper::fp16_unfused;
  }

  // stage_1_and_2.py _restore_base_optimizer_state takes the hyper-parameters of the new run, and
  // its step from base_optimizer_state_step, which only DeepSpeed's own Adam has.
  void check_elastic() const {
    constexpr std::string_view kHint =
        "--like CHECKPOINT takes the hyper-parameters from a checkpoint of the new run";
    if (target_.wrapper != EngineWrapper::zero12) {
      throw std::move(UnsupportedError({.file = source_.tag_folder().string()},
                                       "is elastic and has no hyper-parameters, which only stages "
                                       "1 and 2 can do without"))
          .with_hint(std::string(kHint));
    }
    if (!source_.wrapper_state().value.find(keys::kBaseOptimizerStateStep)) {
      throw std::move(
          UnsupportedError({.file = source_.tag_folder().string()},
                           "is elastic and has no base_optimizer_state_step, without which "
                           "DeepSpeed does not load it, not even at its own number of ranks"))
          .with_hint(std::string(kHint));
    }
  }

  void choose_layout() {
    const CheckpointFacts& known = reference_.facts();
    const bool from_files =
        !options_.ds_config && !known.universal && known.optimizer_wrapper == EngineWrapper::zero12;
    target_.round_robin = target_.wrapper == EngineWrapper::zero12 &&
                          (from_files ? known.round_robin : target_.engine.round_robin_gradients);
    target_.parameter_alignment =
        target_.wrapper == EngineWrapper::zero12 &&
        (from_files ? known.parameter_alignment || target_.engine.parameter_alignment
                    : target_.engine.parameter_alignment);
    if (target_.wrapper == EngineWrapper::zero12 && !from_files) need_config();
    if (target_.wrapper == EngineWrapper::zero12) check_round_robin_evidence(from_files);
    target_.sub_group_size =
        options_.sub_group_size.value_or(static_cast<uint64_t>(target_.engine.sub_group_size));
    if (!options_.sub_group_size && !options_.ds_config) check_sub_groups();
  }

  // Nothing but the configuration tells round_robin_gradients; where DeepSpeed's own files lack it,
  // their wrong param_slice_mappings do, but ours are right.
  void check_round_robin_evidence(bool from_files) {
    if (!from_files || engine_) return;
    if (!target_.round_robin) {
      note("no ds_config says so: round_robin_gradients is taken to be off");
      return;
    }
    throw std::move(
        UnsupportedError({.file = file_of(reference_), .member = std::string(keys::kDsConfig)},
                         "is not there, but the files are of a run with "
                         "round_robin_gradients, which has to be written down"))
        .with_hint(kConfigHint);
  }

  // If the files are not cut as the size says, the new ones would not be as the engine cuts.
  void check_sub_groups() const {
    const CheckpointFacts& known = reference_.facts();
    if (target_.stage != 3 || known.zero_stage != 3 || known.universal) return;
    const Value saved = root_of(reference_).find_or_none(keys::kParamShapes);
    const std::vector<Value> one{saved};  // releases before 0.5 have one dict
    const auto shapes = saved.is_mapping() ? std::span(one) : saved.sequence_or_empty();
    const ExpertNames experts(reference_);
    size_t next = 0;
    for (const ParamGroup& group : reference_.groups()) {
      std::vector<uint64_t> numels;
      for (const std::string& name : group.params) {
        numels.push_back(static_cast<uint64_t>(
            is_expert_group(group) ? experts.local(name, 0, group.ep_size).weight.numel()
                                   : reference_.find(name)->weight.numel()));
      }
      size_t begin = 0;
      for (const size_t end :
           sub_group_ends(numels, known.mesh.dp / group.ep_size, target_.sub_group_size)) {
        const bool fits = next < shapes.size() && shapes[next].is_mapping() &&
                          shapes[next].as_dict().items.size() == end - begin;
        if (!fits) {
          throw std::move(
              UnsupportedError(
                  {.file = file_of(reference_), .member = std::string(keys::kParamShapes)},
                  "is not cut into the sub-groups that a sub_group_size of " +
                      std::to_string(target_.sub_group_size) + " makes"))
              .with_hint("--sub-group-size says the new run's");
        }
        begin = end;
        ++next;
      }
    }
  }

  void check_optimizer() const {
    const std::vector<std::string> keys = state_keys(source_);
    const auto has = [&](std::string_view key) {
      return std::find(keys.begin(), keys.end(), key) != keys.end();
    };
    if (target_.stage == 3 && has("sum")) {
      throw UnsupportedError({.file = source_.tag_folder().string()},
                             "is of torch's Adagrad, whose states DeepSpeed does not load at stage "
                             "3, not even its own");
    }
    if (!is_other_run() || keys.empty()) return;
    const Expected* expected = nullptr;
    std::string type = target_.engine.optimizer_type;
    std::transform(type.begin(), type.end(), type.begin(),
                   [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
    for (const Expected& row : kOptimizers) {
      if (row.type == type) expected = &row;
    }
    const bool deepspeeds_adam = (type == "adam" || type == "adamw") && !target_.engine.torch_adam;
    if (deepspeeds_adam && options_.ds_config && !target_.elastic && options_.like == nullptr &&
        !has_bias_correction(source_)) {
      throw no_bias_correction();
    }
    if (expected == nullptr) return;
    if ((!expected->needed.empty() && !has(expected->needed)) ||
        (!expected->foreign.empty() && has(expected->foreign))) {
      throw UsageError("the new run's optimizer is " + type +
                       ", which does not keep the states of the checkpoint: " + joined(keys));
    }
  }

  // States by which optimizers are told from each other.
  struct Expected {
    std::string_view type;
    std::string_view needed;
    std::string_view foreign;
  };
  static constexpr std::array kOptimizers{
      Expected{"adam", "exp_avg_sq", "momentum_buffer"},
      Expected{"adamw", "exp_avg_sq", "momentum_buffer"},
      Expected{"lamb", "exp_avg_sq", "momentum_buffer"},
      Expected{"lion", "exp_avg", "exp_avg_sq"},
      Expected{"muon", "momentum_buffer", ""},
      Expected{"sgd", "", "exp_avg_sq"},
      Expected{"adagrad", "", "exp_avg"},
  };

  static std::string joined(const std::vector<std::string>& texts) {
    std::string all;
    for (const std::string& text : texts) all += (all.empty() ? "" : ", ") + quoted(text);
    return all;
  }

  // What the new run's configuration has that would make DeepSpeed look for other files.
  void check_config() {
    const EngineConfig& engine = target_.engine;
    if (engine.load_universal) {
      constexpr std::string_view kText =
          "checkpoint.load_universal is set: DeepSpeed would look for a universal checkpoint";
      if (is_other_run()) throw UsageError(std::string(kText));
      note(std::string(kText) + "; turn it off in the new run");
    }
    if (engine.autotp_size > 1 && engine.autotp_size != facts().mesh.tp) {
      throw UsageError("tensor_parallel.autotp_size is " + std::to_string(engine.autotp_size) +
                       ": the new run would look for slices of " +
                       std::to_string(engine.autotp_size) + " tensor-parallel ranks");
    }
    if (engine.checkpoint_writer) {
      note(
          "with checkpoint.writer set DeepSpeed does not load its own optimizer files; turn it off "
          "to resume");
    }
    if (engine_) {
      const auto zero = config_->find("zero_optimization");
      if (zero != config_->end() && zero->is_object()) check_hpz(*zero);
    }
  }

  void check_hpz(const Json& zero) {
    const auto found = zero.find("zero_hpz_partition_size");
    if (found == zero.end() || !found->is_number_integer()) return;
    const auto size = found->get<int64_t>();
    if (size <= 1 || target_.dp % size == 0) return;
    note("zero_hpz_partition_size is " + std::to_string(size) + ", which does not divide " +
         std::to_string(target_.dp) + " ranks; change it in the new run");
  }

  // An engine with its optimizer on NVMe does not read optimizer-states files: engine.py
  // load_checkpoint.
  void leave_nvme() {
    if (target_.engine.offload_optimizer != OffloadDevice::nvme) return;
    if (is_other_run()) {
      note(
          "with offload_optimizer.device nvme DeepSpeed does not read the optimizer's files: "
          "resume with cpu or none");
      return;
    }
    note(
        "offload_optimizer.device is cpu in the new files, nvme in the checkpoint: with nvme "
        "DeepSpeed does not read the optimizer's files, so resume with cpu or none");
    if (!target_.ds_config) target_.ds_config = saved_;
    Json& device = (*target_.ds_config)["zero_optimization"]["offload_optimizer"];
    device["device"] = "cpu";
    device.erase("nvme_path");
  }

  // The new files say the new run's configuration.
  void write_config() {
    if (is_other_run() && config_) {
      target_.ds_config = config_;
      if (options_.sub_group_size) set_zero("sub_group_size", *options_.sub_group_size);
      return;
    }
    if (!saved_engine_) return;
    const bool new_stage = target_.stage != facts().zero_stage;
    const bool new_ep =
        options_.ep && saved_->contains(kExpertParallel) && (*saved_)[kExpertParallel].is_object();
    if (!new_stage && !new_ep && !options_.sub_group_size) return;
    target_.ds_config = saved_;
    if (new_ep) (*target_.ds_config)[kExpertParallel]["autoep_size"] = target_.ep;
    if (new_stage) set_zero("stage", target_.stage);
    if (options_.sub_group_size) set_zero("sub_group_size", *options_.sub_group_size);
  }

  template <typename T>
  void set_zero(const char* key, T value) {
    Json& zero = (*target_.ds_config)["zero_optimization"];
    if (!zero.is_object()) zero = Json::object();
    zero[key] = value;
  }

  const Checkpoint& source_;
  const ReshardOptions& options_;
  const Checkpoint& reference_;  // what is laid out as the new run's files
  std::vector<std::string>& notes_;
  // The old run's configuration, and the new run's as far as it is known.
  std::optional<Json> saved_;
  std::optional<EngineConfig> saved_engine_;
  std::optional<Json> config_;
  std::optional<EngineConfig> engine_;
  std::string unread_;  // why the configuration that matters is not understood
  ReshardTarget target_;
};

}  // namespace

std::optional<Json> saved_ds_config(const Checkpoint& checkpoint) {
  const Value config = root_of(checkpoint).find_or_none(keys::kDsConfig);
  if (!config.is_mapping()) return std::nullopt;
  return in_context({.file = file_of(checkpoint), .member = std::string(keys::kDsConfig)},
                    [&] { return json_of(config); });
}

DType param_dtype_of(const Checkpoint& checkpoint) {
  const Param& param = first_trained(checkpoint);
  const TorchArchive& archive = *checkpoint.model_files().front().archive;
  const Value module = archive.root().find_or_none(keys::kModule);
  const Value value = module.find_or_none(param.name);
  if (!TorchArchive::is_tensor(value)) return param.weight.dtype();
  return in_context({.file = file_of(checkpoint), .tensor = param.name},
                    [&] { return archive.info(value).dtype; });
}

ReshardTarget reshard_target(const Checkpoint& source, const ReshardOptions& options,
                             std::vector<std::string>& notes) {
  return TargetBuilder(source, options, notes).build();
}

}  // namespace dsckpt
