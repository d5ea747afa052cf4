#include "reshard/refusals.h"

#include <algorithm>
#include <array>
#include <utility>

#include "base/text.h"
#include "checkpoint/experts.h"
#include "deepspeed/keys.h"
#include "reshard/checks.h"

namespace dsckpt {
namespace {

using Place = Refusal::Place;

constexpr const char* kGroupsHint =
    "--like CHECKPOINT takes the groups from a checkpoint of the new run";
constexpr const char* kSettingsHint =
    "--like CHECKPOINT takes the hyper-parameters from a checkpoint of the new run";
constexpr const char* kConfigHint = "--ds-config says the new run's";
constexpr const char* kExpertsHint = "--ep says how many the new run has";
constexpr const char* kTorchAdam =
    "the new run's optimizer is DeepSpeed's own Adam, the checkpoint's is torch's, whose "
    "hyper-parameters have no bias_correction: DeepSpeed would stop at the first step";
constexpr const char* kTorchAdamHint = "set \"torch_adam\": true in the new run";
constexpr const char* kSaidByCondition = "";

bool has_trained(const RunFacts& facts) {
  const auto params = facts.params.all();
  return std::any_of(params.begin(), params.end(), is_trained);
}

// Hugging Face fills "auto" in when the run starts; what matters here has to be known.
std::optional<Found> unknown_auto(const Choice& choice) {
  constexpr std::array<std::pair<const char*, const char*>, 5> kNeeded{
      {{"zero_optimization", "stage"},
       {"zero_optimization", "round_robin_gradients"},
       {"zero_optimization", "sub_group_size"},
       {"bf16", "enabled"},
       {"fp16", "enabled"}}};
  if (!choice.options.ds_config) return std::nullopt;
  for (const auto& [section, key] : kNeeded) {
    const auto found = choice.config->find(section);
    if (found == choice.config->end() || !found->is_object()) continue;
    const auto value = found->find(key);
    if (value == found->end() || *value != "auto") continue;
    return Found{.text = std::string(section) + "." + key +
                         " is \"auto\", and the checkpoint does not say what it was"};
  }
  return std::nullopt;
}

// The number of expert-parallel ranks that cannot share the new ranks.
std::optional<Found> uneven(const Choice& choice, uint32_t ep) {
  if (choice.target.dp % ep == 0) return std::nullopt;
  return Found{.text = counted(choice.target.dp, "data-parallel rank") + " cannot be shared by " +
                       counted(ep, "expert-parallel rank")};
}

std::optional<Found> uneven_option(const Choice& choice) {
  return choice.options.ep ? uneven(choice, *choice.options.ep) : std::nullopt;
}

std::optional<Found> uneven_group(const Choice& choice) {
  for (const RunGroup& group : choice.target.groups) {
    if (auto found = uneven(choice, group.ep_size)) return found;
  }
  return std::nullopt;
}

// True if the order in which the ranks share experts matters and nothing tells it.
bool lacks_expert_order(const Choice& choice) {
  if (choice.config && choice.config->is_object()) return false;
  const auto& groups = choice.target.groups;
  return std::any_of(groups.begin(), groups.end(), [&](const RunGroup& group) {
    return group.ep_size > 1 && group.ep_size < choice.target.dp;
  });
}

// True if the wrapper and the layout follow from a configuration that is not understood.
bool lacks_config(const Choice& choice) {
  const CheckpointFacts& known = choice.reference().checkpoint;
  const bool from_files =
      !choice.options.ds_config && choice.target.stage == known.zero_stage && !known.is_universal();
  return !from_files && !choice.engine && !choice.config_error().empty();
}

// The configuration says stage 0; the files are those of stage 1.
bool has_bf16_optimizer_at_stage_0(const Choice& choice) {
  return choice.target.wrapper == EngineWrapper::bf16_optimizer && choice.engine &&
         choice.engine->zero_stage == 0;
}

constexpr Refusal kRefusals[] = {
    // --- the checkpoint and the options
    {Step::source, ErrorKind::unsupported, Place::source_file,
     [](const Choice& c) { return !has_trained(c.source); },
     "has no parameter that an optimizer owns: there is nothing to reshard"},
    {Step::source, ErrorKind::usage, Place::nowhere,
     [](const Choice& c) { return c.source.checkpoint.from_weights() && c.source.file.empty(); },
     "weights do not tell the optimizer and its parameter groups",
     "--like CHECKPOINT takes them from a checkpoint of the new run"},
    {Step::source, ErrorKind::unsupported, Place::source_file,
     [](const Choice& c) {
       return c.source.checkpoint.from_weights() && c.source.checkpoint.elastic;
     },
     "is elastic and has no hyper-parameters to start with"},
    {Step::source, ErrorKind::unsupported, Place::source_file,
     [](const Choice& c) { return !c.source.has_optimizer; },
     "has no optimizer state: there is no training to continue"},

    // --- the release
    {Step::release, ErrorKind::usage, Place::nowhere,
     [](const Choice& c) {
       return !c.options.ds_version.empty() && !release_of(c.options.ds_version);
     },
     [](const Choice& c) {
       return "--ds-version '" + c.options.ds_version +
              "' is not a release of DeepSpeed, like 0.16.4";
     }},
    {Step::release, ErrorKind::unsupported, Place::nowhere,
     [](const Choice& c) {
       return !c.options.ds_version.empty() && is_before(c.target.release, kFirstKnown);
     },
     "no release before 0.4 is written for"},
    {Step::config, ErrorKind::unsupported, Place::source_folder,
     [](const Choice& c) {
       return !c.options.ds_version.empty() && is_before(c.target.release, kAutoEp) && c.config &&
              c.config->is_object() && c.config->contains("expert_parallel");
     },
     "has experts of AutoEP, which that release does not have"},

    // --- the configuration
    {Step::config, ErrorKind::usage, Place::nowhere, unknown_auto, kSaidByCondition},

    // --- the stage
    {Step::stage, ErrorKind::usage, Place::nowhere,
     [](const Choice& c) { return c.is_other_run() && c.target.stage != c.configured_stage(); },
     [](const Choice& c) {
       return "the stage asked for is " + std::to_string(c.target.stage) +
              ", but the new run's is " + std::to_string(c.configured_stage());
     }},
    // pipe/engine.py PipelineEngine.
    {Step::stage, ErrorKind::usage, Place::nowhere,
     [](const Choice& c) { return c.source.is_pipeline && c.target.stage > 1; },
     [](const Choice& c) {
       return "the model is a pipeline, which DeepSpeed does not train at stage " +
              std::to_string(c.target.stage);
     },
     "--stage 1 and --stage 0 are possible"},
    {Step::stage, ErrorKind::usage, Place::nowhere,
     [](const Choice& c) { return c.options.sub_group_size && c.target.stage != 3; },
     [](const Choice& c) {
       return "sub-groups are of stage 3, the new run's stage is " + std::to_string(c.target.stage);
     }},
    {Step::stage, ErrorKind::unsupported, Place::reference_file,
     [](const Choice& c) { return c.source.checkpoint.from_weights() && c.target.stage == 0; },
     "is of stage 0, where shards do not start a run as the weights would",
     "give the weights to the model before deepspeed.initialize"},

    {Step::stage, ErrorKind::unsupported, Place::source_folder, frozen_or_buffer,
     "is not trained, and nothing tells whether it is a frozen parameter, which stage 3 cuts, or a "
     "buffer",
     "--like CHECKPOINT takes it from a checkpoint of the new run"},

    // --- the groups there are
    {Step::stage, ErrorKind::unsupported, Place::source_states,
     [](const Choice& c) {
       return c.source.checkpoint.states != StatesTold::yes &&
              (c.like != nullptr || (c.source.groups.empty() && !c.keeps_plain_optimizer()));
     },
     "has no names, and the shapes do not tell which parameter each state belongs to"},
    {Step::stage, ErrorKind::unsupported, Place::source_folder,
     [](const Choice& c) {
       return c.like == nullptr && c.source.groups.empty() && !c.keeps_plain_optimizer();
     },
     "does not tell the optimizer's parameter groups", kGroupsHint},
    {Step::stage, ErrorKind::unsupported, Place::like_folder,
     [](const Choice& c) { return c.like != nullptr && c.like->groups.empty(); },
     "does not tell the optimizer's parameter groups"},
    {Step::stage, ErrorKind::inconsistent, Place::like_folder, other_model, kSaidByCondition,
     "is the checkpoint of the new run's model? names and shapes of its parameters must be equal"},
    {Step::stage, ErrorKind::usage, Place::nowhere, is_torchs_adam_for_like, kTorchAdam,
     kTorchAdamHint},
    {Step::groups, ErrorKind::unsupported, Place::like_folder,
     [](const Choice& c) {
       const auto& groups = c.target.groups;
       return c.like != nullptr &&
              std::any_of(groups.begin(), groups.end(),
                          [](const RunGroup& group) { return !group.settings.known; });
     },
     "is elastic and has no hyper-parameters, and neither has the checkpoint for its groups"},

    // --- experts
    {Step::groups, ErrorKind::usage, Place::nowhere,
     [](const Choice& c) { return c.options.ep && !c.has_experts(); },
     [](const Choice& c) {
       return "the checkpoint has no experts for " + counted(*c.options.ep, "expert-parallel rank");
     }},
    {Step::groups, ErrorKind::usage, Place::nowhere, uneven_option, kSaidByCondition, kExpertsHint},
    {Step::experts, ErrorKind::usage, Place::nowhere, uneven_group, kSaidByCondition, kExpertsHint},
    {Step::experts, ErrorKind::unsupported, Place::source_config, lacks_expert_order,
     "is needed: it says in which order the ranks share experts", kConfigHint},

    // stage_1_and_2.py _configure_moe_settings.
    {Step::experts, ErrorKind::unsupported, Place::source_folder,
     [](const Choice& c) {
       const auto& groups = c.target.groups;
       return c.target.stage != 0 &&
              std::any_of(groups.begin(), groups.end(),
                          [](const RunGroup& group) { return group.unmarked_experts; });
     },
     "has experts in a parameter group that is not marked as theirs, which only stage 0 takes",
     kGroupsHint},
    // engine.py _do_sanity_check.
    {Step::experts, ErrorKind::unsupported, Place::source_folder,
     [](const Choice& c) {
       return c.target.stage == 3 && c.source.has_expert_layers && c.source.autoep_params.empty();
     },
     "has experts of DeepSpeed's own layers, which it does not train at stage 3",
     "--stage 0, --stage 1 and --stage 2 are possible"},
    // engine.py _save_moe_checkpoint.
    {Step::experts, ErrorKind::unsupported, Place::source_file, expert_without_optimizer,
     "is an expert's parameter that is frozen, which DeepSpeed does not save at stage 3",
     "--stage 1 and --stage 2 are possible"},

    // --- the groups' members
    {Step::experts, ErrorKind::unsupported, Place::source_file, wrong_member, kSaidByCondition},
    {Step::experts, ErrorKind::unsupported, Place::source_file, stateless_member,
     "has no optimizer state: it is frozen, or was never given a gradient, and the file does not "
     "tell which",
     kGroupsHint},
    {Step::members, ErrorKind::unsupported, Place::source_folder, empty_group, kSaidByCondition},
    {Step::members, ErrorKind::unsupported, Place::source_file, frozen_without_elements,
     "has no elements, and the files do not tell whether the optimizer has it, which stage 0 "
     "counts",
     kGroupsHint},

    // --- the precision
    {Step::precision, ErrorKind::unsupported, Place::reference_file,
     [](const Choice& c) { return !c.options.ds_config && !has_trained(c.reference()); },
     "has no parameter that an optimizer owns: there is nothing to reshard"},

    // --- the wrapper
    {Step::wrapper, ErrorKind::unsupported, Place::reference_config, lacks_config,
     [](const Choice& c) { return "is needed and not understood: " + c.config_error(); },
     kConfigHint},
    // stage_1_and_2.py _restore_base_optimizer_state takes the hyper-parameters of the new run, and
    // its step from base_optimizer_state_step.
    {Step::wrapper, ErrorKind::unsupported, Place::source_folder,
     [](const Choice& c) { return c.target.elastic && c.target.wrapper != EngineWrapper::zero12; },
     "is elastic and has no hyper-parameters, which only stages 1 and 2 can do without",
     kSettingsHint},
    {Step::wrapper, ErrorKind::unsupported, Place::source_folder,
     [](const Choice& c) {
       return c.target.elastic && !c.source.has_base_step &&
              !is_before(c.target.release, kRigidStates);
     },
     "is elastic and has no base_optimizer_state_step, without which DeepSpeed does not load it, "
     "not even at its own number of ranks",
     kSettingsHint},

    {Step::wrapper, ErrorKind::unsupported, Place::source_folder,
     [](const Choice& c) {
       return !c.options.ds_version.empty() && has_bf16_optimizer_at_stage_0(c) &&
              !is_before(c.target.release, kNoBf16OptimizerAtStage0);
     },
     "is of BF16_Optimizer without ZeRO, which DeepSpeed does not have since 0.17.6",
     "--stage 1 makes it a checkpoint of ZeRO"},
    {Step::wrapper, ErrorKind::unsupported, Place::source_folder,
     [](const Choice& c) {
       return !c.options.ds_version.empty() && c.target.wrapper == EngineWrapper::bf16_optimizer &&
              !is_before(c.target.release, kNoBf16OptimizerAtStage0) &&
              is_before(c.target.release, kBf16StatesAtStage0);
     },
     "is of BF16_Optimizer, which DeepSpeed 0.17.6 to 0.18.4 does not make"},
    {Step::wrapper, ErrorKind::unsupported, Place::source_folder,
     [](const Choice& c) {
       return !c.options.ds_version.empty() && c.target.stage == 0 &&
              c.target.precision == Precision::bf16 &&
              is_before(c.target.release, kBf16StatesAtStage0);
     },
     "is of stage 0 in bf16, for which that release has another optimizer, or saves none",
     "--stage 1 makes it a checkpoint of ZeRO"},

    // --- the layout
    {Step::layout, ErrorKind::unsupported, Place::source_folder,
     [](const Choice& c) {
       return c.target.parameter_alignment && is_before(c.target.release, kParameterAlignment);
     },
     "has parameters that are aligned in the flat vectors, which that release does not know"},
    // Nothing but the configuration tells round_robin_gradients; where DeepSpeed's own files lack
    // it, their wrong param_slice_mappings do, but ours are right.
    {Step::layout, ErrorKind::unsupported, Place::reference_config,
     [](const Choice& c) { return c.target.round_robin && c.layout_is_in_files() && !c.engine; },
     "is not there, but the files are of a run with round_robin_gradients, which has to be "
     "written down",
     kConfigHint},
    {Step::layout, ErrorKind::unsupported, Place::reference_shapes, other_sub_groups,
     [](const Choice& c) {
       return "is not cut into the sub-groups that a sub_group_size of " +
              std::to_string(c.target.sub_group_size) + " makes";
     },
     "--sub-group-size says the new run's"},

    // --- the optimizer
    {Step::layout, ErrorKind::unsupported, Place::source_folder, is_adagrad_at_stage_3,
     "is of torch's Adagrad, whose states DeepSpeed does not load at stage 3, not even its own"},
    {Step::layout, ErrorKind::usage, Place::nowhere, is_torchs_adam_for_config, kTorchAdam,
     kTorchAdamHint},
    {Step::layout, ErrorKind::usage, Place::nowhere, other_optimizer, kSaidByCondition},

    // --- what would make DeepSpeed look for other files
    {Step::layout, ErrorKind::usage, Place::nowhere,
     [](const Choice& c) { return c.is_other_run() && c.target.engine.load_universal; },
     "checkpoint.load_universal is set: DeepSpeed would look for a universal checkpoint"},
    {Step::layout, ErrorKind::usage, Place::nowhere,
     [](const Choice& c) {
       const int64_t slices = c.target.engine.autotp_size;
       return slices > 1 && slices != c.source.checkpoint.mesh.tp;
     },
     [](const Choice& c) {
       const std::string slices = std::to_string(c.target.engine.autotp_size);
       return "tensor_parallel.autotp_size is " + slices +
              ": the new run would look for slices of " + slices + " tensor-parallel ranks";
     }},
};

Where where_of(const Choice& choice, Place place) {
  const RunFacts& reference = choice.reference();
  switch (place) {
    case Place::nowhere:
      return {};
    case Place::source_folder:
      return {.file = choice.source.folder};
    case Place::source_file:
      return {.file = choice.source.file};
    case Place::source_states:
      return {.file = choice.source.file, .member = "optimizer.state"};
    case Place::source_config:
      return {.file = choice.source.file, .member = std::string(keys::kDsConfig)};
    case Place::like_folder:
      return {.file = reference.folder};
    case Place::reference_file:
      return {.file = reference.file};
    case Place::reference_config:
      return {.file = reference.file, .member = std::string(keys::kDsConfig)};
    case Place::reference_shapes:
      return {.file = reference.file, .member = std::string(keys::kParamShapes)};
  }
  return {};
}

[[noreturn]] void raise(const Error& error, const char* hint) {
  switch (error.kind()) {
    case ErrorKind::usage:
      throw UsageError(error).with_hint(hint);
    case ErrorKind::inconsistent:
      throw InconsistentError(error).with_hint(hint);
    default:
      throw UnsupportedError(error).with_hint(hint);
  }
}

}  // namespace

std::span<const Refusal> refusals() {
  return kRefusals;
}

void refuse(const Choice& choice, Step step) {
  for (const Refusal& row : kRefusals) {
    if (row.after != step) continue;
    std::optional<Found> found = row.condition(choice);
    if (!found) continue;
    Where where = where_of(choice, row.place);
    if (!found->folder.empty()) where.file = std::move(found->folder);
    where.tensor = std::move(found->tensor);
    std::string text = found->text.empty() ? row.text(choice) : std::move(found->text);
    raise(Error(row.kind, std::move(where), std::move(text)), row.hint);
  }
}

// The experts of a tensor-parallel rank are others than those of the next. The files call them
// replicated, and each describes only its own, so they cannot be cut rank by rank.
void refuse_folded(const Checkpoint& source) {
  if (source.files().model.empty()) return;  // weights, and other frameworks' checkpoints
  const CheckpointFile& file = source.files().model.front();
  if (!is_folded(file.archive->root())) return;
  throw UnsupportedError({.file = file.path.string(), .member = std::string(keys::kFolding)},
                         "says that AutoEP is folded with tensor parallelism, which is "
                         "not resharded")
      .with_hint("to-universal reads it");
}

}  // namespace dsckpt
