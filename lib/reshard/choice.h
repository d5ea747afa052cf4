// A target in the making: what it is chosen from, and what has been chosen so far.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "deepspeed/ds_config.h"
#include "deepspeed/engine_config.h"
#include "reshard/run_facts.h"
#include "reshard/target.h"

namespace dsckpt {

// The decisions, in this order; each may need those before it.
enum class Step : uint8_t {
  source,     // nothing: what can be said of the checkpoint and the options alone
  release,    // the release of DeepSpeed that is to load it
  config,     // the configuration that says what the new engine is like
  engine,     // what it makes of an engine
  stage,      // the ZeRO stage
  groups,     // the parameter groups, as they were
  experts,    // how the new ranks share experts
  members,    // what of the groups the new optimizer owns
  precision,  // fp32, fp16 or bf16
  wrapper,    // the optimizer's wrapper, and whether it is elastic
  layout,     // order, alignment, sub-groups
};

struct Choice {
  const RunFacts& source;
  const RunFacts* like;  // or nullptr
  const TargetOptions& options;

  // The new run's configuration, else the old one's, as far as it is known.
  std::optional<nlohmann::ordered_json> config = {};
  std::optional<EngineConfig> engine = {};
  ReshardTarget target = {};

  // Whose files the new ones are laid out like.
  const RunFacts& reference() const { return like != nullptr ? *like : source; }
  // True if anything but `source` describes the new run.
  bool is_other_run() const { return options.ds_config || like != nullptr; }
  // The stage without --stage.
  int configured_stage() const {
    return options.ds_config ? engine->zero_stage : reference().checkpoint.zero_stage;
  }
  // Without ZeRO all ranks have everything, and the optimizer can be copied as it is.
  bool keeps_plain_optimizer() const;
  // True if the reference's files are DeepSpeedZeroOptimizer's and tell its layout.
  bool layout_is_in_files() const;
  // Why the configuration that matters is not understood; "" if it is, or there is none.
  const std::string& config_error() const;
  // The group of `source` that has the members of `group`, of `like`, and hyper-parameters; or
  // nullptr.
  const RunGroup* own_group(const RunGroup& group) const;
  bool has_experts() const;  // in any group of the target
};

// The finding of a condition of refusals.h, where it is more than yes or no. Empty fields are as
// the row has them.
struct Found {
  std::string tensor = {};  // which parameter is meant
  std::string text = {};    // what is wrong with it
  std::string folder = {};  // where
};

// The notes for the new run, in order, once everything is decided.
std::vector<std::string> notes_of(const Choice& choice);

}  // namespace dsckpt
