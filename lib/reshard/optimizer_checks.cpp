#include "reshard/optimizer_checks.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <string>
#include <string_view>
#include <vector>

namespace dsckpt {
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
