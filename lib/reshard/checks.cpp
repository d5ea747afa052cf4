#include "reshard/checks.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <string>
#include <string_view>
#include <vector>

#include "base/keyed_hash.h"
#include "deepspeed/zero_layout.h"
#include "reshard/experts.h"

namespace dsckpt {
namespace {

// The members of `a` that differ in `b`.
std::optional<Found> difference(const RunFacts& a, const RunFacts& b) {
  for (const Param& param : a.params.all()) {
    const Param* other = b.params.find(param.name);
    const auto found = [&](const std::string& text) {
      return Found{.tensor = param.name, .text = text, .folder = b.folder};
    };
    // The files of layers have the rest, which a rank's world may lack.
    if (other == nullptr && a.is_pipeline && !is_trained(param)) continue;
    if (other == nullptr) return found("is not there, but is in " + a.folder);
    if (!is_trained(param)) continue;
    // A plain optimizer lists frozen parameters, too, and has no states of them.
    const bool maybe_frozen = a.checkpoint.zero_stage == 0 && !has_states(param);
    if (other->kind == ParamKind::frozen && maybe_frozen) continue;
    if (!is_trained(*other)) return found("is not trained, but is in " + a.folder);
    if (other->weight.shape() != param.weight.shape()) {
      return found("has shape " + to_text(other->weight.shape()) + ", in " + a.folder + " " +
                   to_text(param.weight.shape()));
    }
  }
  return std::nullopt;
}

}  // namespace

std::optional<Found> other_model(const Choice& choice) {
  if (choice.like == nullptr) return std::nullopt;
  const std::optional<Found> found = difference(choice.source, *choice.like);
  return found ? found : difference(*choice.like, choice.source);
}

std::optional<Found> wrong_member(const Choice& choice) {
  if (choice.target.groups.empty()) return std::nullopt;
  const ParamIndex& params = choice.source.params;
  const ExpertNames experts(params.all(), choice.source.folder);
  KeyedSet<std::string_view> members;
  for (const RunGroup& group : choice.target.groups) {
    for (const std::string_view name : experts.members_of(group)) {
      const Param* param = params.find(name);
      if (param == nullptr || !is_trained(*param)) {
        return Found{.tensor = std::string(name),
                     .text = "is in a parameter group, but is not a trained parameter"};
      }
      if (!members.insert(name).second) {
        return Found{.tensor = std::string(name), .text = "is in two parameter groups"};
      }
    }
  }
  for (const Param& param : params.all()) {
    if (!is_trained(param) || members.contains(param.name)) continue;
    if (choice.like != nullptr && param.states.empty()) continue;  // frozen there
    return Found{.tensor = param.name,
                 .text =
                     "is in none of the optimizer's parameter groups; whether it is frozen "
                     "the files do not tell"};
  }
  return std::nullopt;
}

std::optional<Found> stateless_member(const Choice& choice) {
  if (choice.target.stage == 0 || choice.source.checkpoint.zero_stage != 0) return std::nullopt;
  const ParamIndex& params = choice.source.params;
  if (std::none_of(params.all().begin(), params.all().end(), has_states)) return std::nullopt;
  const ExpertNames experts(params.all(), choice.source.folder);
  for (const RunGroup& group : choice.target.groups) {
    for (const std::string_view name : experts.members_of(group)) {
      const Param& param = *params.find(name);
      if (!param.fresh && !has_states(param)) return Found{.tensor = std::string(name)};
    }
  }
  return std::nullopt;
}

std::optional<Found> expert_without_optimizer(const Choice& choice) {
  if (choice.target.stage != 3) return std::nullopt;
  for (const std::string& name : choice.source.autoep_params) {
    const Param* param = choice.source.params.find(name);
    if (param == nullptr || !is_trained(*param)) return Found{.tensor = name};
  }
  return std::nullopt;
}

std::optional<Found> empty_group(const Choice& choice) {
  if (!choice.target.is_zero12()) return std::nullopt;
  const std::vector<RunGroup>& groups = choice.target.groups;
  for (size_t g = 0; g < groups.size(); ++g) {
    if (!groups[g].params.empty()) continue;
    return Found{.text = "has a parameter group, number " + std::to_string(g) +
                         ", without parameters that are trained, which DeepSpeed's stages 1 and 2 "
                         "cannot have"};
  }
  return std::nullopt;
}

std::optional<Found> frozen_or_buffer(const Choice& choice) {
  const bool told = choice.like != nullptr;
  if (choice.target.stage != 3 || told || !choice.source.checkpoint.is_foreign())
    return std::nullopt;
  for (const Param& param : choice.source.params.all()) {
    if (param.kind == ParamKind::frozen && param.alias_of.empty()) {
      return Found{.tensor = param.name};
    }
  }
  return std::nullopt;
}

std::optional<Found> frozen_without_elements(const Choice& choice) {
  if (choice.target.stage != 0 || choice.source.checkpoint.zero_stage == 0 ||
      choice.like != nullptr) {
    return std::nullopt;
  }
  for (const Param& param : choice.source.params.all()) {
    if (param.kind == ParamKind::frozen && param.weight.numel() == 0) {
      return Found{.tensor = param.name};
    }
  }
  return std::nullopt;
}

namespace {

// `reference`: as its files are.
std::optional<Found> other_sub_groups_than(const RunFacts& reference, const Choice& choice) {
  const CheckpointFacts& known = reference.checkpoint;
  const ExpertNames experts(reference.params.all(), reference.folder);
  size_t next = 0;
  for (const RunGroup& group : reference.groups) {
    std::vector<uint64_t> numels;
    for (const std::string& name : group.params) {
      numels.push_back(static_cast<uint64_t>(
          group.has_experts() ? experts.local(name, 0, group.ep_size).weight.numel()
                              : reference.params.find(name)->weight.numel()));
    }
    size_t begin = 0;
    for (const size_t end :
         sub_group_ends(numels, known.mesh.dp / group.ep_size, choice.target.sub_group_size)) {
      if (next >= reference.sub_groups.size() || reference.sub_groups[next] != end - begin) {
        return Found{};
      }
      begin = end;
      ++next;
    }
  }
  return std::nullopt;
}

}  // namespace

std::optional<Found> other_sub_groups(const Choice& choice) {
  const RunFacts& reference = choice.reference();
  const CheckpointFacts& known = reference.checkpoint;
  if (choice.options.sub_group_size || choice.options.ds_config) return std::nullopt;
  if (choice.target.stage != 3 || known.zero_stage != 3 || known.is_universal())
    return std::nullopt;
  // The files have those of other slices, and their own world was looked at before.
  if (known.regridded) return std::nullopt;
  return reference.changed_from == nullptr
             ? other_sub_groups_than(reference, choice)
             : other_sub_groups_than(run_facts(*reference.changed_from), choice);
}

namespace {

bool has_bias_correction(const RunFacts& facts) {
  return std::any_of(facts.groups.begin(), facts.groups.end(),
                     [](const RunGroup& group) { return group.settings.bias_correction; });
}

bool has_state(const RunFacts& facts, std::string_view key) {
  return std::find(facts.state_keys.begin(), facts.state_keys.end(), key) != facts.state_keys.end();
}

// States by which optimizers are told from each other.
struct OptimizerStates {
  std::string_view type;  // of the configuration, in lower case
  std::string_view needed;
  std::string_view foreign;
};
constexpr std::array kOptimizers{
    OptimizerStates{"adam", "exp_avg_sq", "momentum_buffer"},
    OptimizerStates{"adamw", "exp_avg_sq", "momentum_buffer"},
    OptimizerStates{"lamb", "exp_avg_sq", "momentum_buffer"},
    OptimizerStates{"lion", "exp_avg", "exp_avg_sq"},
    OptimizerStates{"muon", "momentum_buffer", ""},
    OptimizerStates{"sgd", "", "exp_avg_sq"},
    OptimizerStates{"adagrad", "", "exp_avg"},
};

std::string optimizer_type(const Choice& choice) {
  std::string type = choice.target.engine.optimizer_type;
  std::transform(type.begin(), type.end(), type.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return type;
}

}  // namespace

bool is_torchs_adam_for_like(const Choice& choice) {
  return choice.like != nullptr && has_bias_correction(*choice.like) &&
         !choice.source.checkpoint.elastic && !has_bias_correction(choice.source);
}

bool is_torchs_adam_for_config(const Choice& choice) {
  const std::string type = optimizer_type(choice);
  return choice.options.ds_config && choice.like == nullptr && !choice.target.elastic &&
         (type == "adam" || type == "adamw") && !choice.target.engine.torch_adam &&
         !choice.source.state_keys.empty() && !has_bias_correction(choice.source);
}

std::optional<Found> other_optimizer(const Choice& choice) {
  const std::vector<std::string>& keys = choice.source.state_keys;
  if (!choice.is_other_run() || keys.empty()) return std::nullopt;
  const std::string type = optimizer_type(choice);
  const auto row = std::find_if(kOptimizers.begin(), kOptimizers.end(),
                                [&](const OptimizerStates& each) { return each.type == type; });
  if (row == kOptimizers.end()) return std::nullopt;
  const bool lacks = !row->needed.empty() && !has_state(choice.source, row->needed);
  const bool has_others = !row->foreign.empty() && has_state(choice.source, row->foreign);
  if (!lacks && !has_others) return std::nullopt;
  std::string names;
  for (const std::string& key : keys) names += (names.empty() ? "'" : ", '") + key + "'";
  return Found{.text = "the new run's optimizer is " + type +
                       ", which does not keep the states of the checkpoint: " + names};
}

bool is_adagrad_at_stage_3(const Choice& choice) {
  return choice.target.stage == 3 && has_state(choice.source, "sum");
}

}  // namespace dsckpt
