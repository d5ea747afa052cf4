#include "universal/loader_notes.h"

#include <algorithm>
#include <set>
#include <utility>

#include "base/text.h"
#include "deepspeed/keys.h"
#include "deepspeed/run_config.h"

namespace dsckpt {
using pickle::Kind;
using pickle::Value;
namespace {

constexpr const char* kSharedStep =
    "DeepSpeed's stage 3 loads one step count for all sub-groups, and torch's own Adam then counts "
    "it once for each; use one parameter group and a sub_group_size above a rank's elements, "
    "DeepSpeed's Adam, or reshard";

class LoaderNotes {
 public:
  explicit LoaderNotes(const Checkpoint& checkpoint)
      : checkpoint_(checkpoint), stage_(checkpoint.facts().zero_stage) {}

  std::vector<std::string> of_checkpoint() {
    if (stage_ != 3 && !checkpoint_.facts().has_universal_info) {
      note("there is no universal_checkpoint_info; none is needed, since no parameter is cut");
    }
    note_not_restored();
    if (stage_ != 3 && checkpoint_.run_config().round_robin_gradients) {
      note(
          "where round_robin_gradients is set, DeepSpeed's loader puts parameters into each "
          "other's places: turn it off in the new run");
    }
    if (is_elastic()) {
      note("the checkpoint is elastic and has no hyper-parameters: those of the new run count");
    }
    add_note_on_nvme();
    add_notes_on_whole_states();
    if (stage_ == 3) add_stage3_notes();
    if (stage_ != 3 && has_muon()) {
      note(
          "Muon keeps whole momenta where DeepSpeed's loader makes partitions: this loads on one "
          "data-parallel rank, or on any number without the momentum_buffer.pt files of its "
          "matrices; reshard carries them");
    }
    if (checkpoint_.facts().mesh.ep > 1 && !has_fused_experts()) {
      note(
          "experts have the numbers they have in the whole model: load this with an "
          "expert-parallel degree of 1");
    }
    return std::move(notes_);
  }

  std::vector<std::string> of_start(const InitialStates& initial) {
    note(
        "for a run that starts from these weights at stage 1, 2 or 3: hyper-parameters, loss scale "
        "and schedule are the new run's own");
    note_not_restored();
    using Step = InitialStates::Step;
    if (initial.keys.empty()) {
      note(
          "without optimizer states: stages 1 and 2 do not need them, and stage 3 does not load "
          "such a checkpoint");
    } else {
      note(std::string("with the states of ") +
           (initial.step == Step::tensor ? "torch's Adam and AdamW"
                                         : "DeepSpeed's own Adam and AdamW") +
           " before their first step");
    }
    if (initial.step == Step::tensor) {
      note(kSharedStep);
    }
    return std::move(notes_);
  }

  std::vector<std::string> of_other_framework() {
    note(
        "for a run at stage 1, 2 or 3 that continues from here: hyper-parameters, loss scale and "
        "schedule are the new run's own");
    note_not_restored();
    note(kSharedStep);
    return std::move(notes_);
  }

 private:
  // engine.py load_checkpoint
  void add_note_on_nvme() {
    if (!checkpoint_.facts().nvme_optimizer) return;
    note(
        "the run had its optimizer on NVMe: with offload_optimizer.device nvme, DeepSpeed does not "
        "load universal checkpoints; use cpu or none");
  }

  void note_not_restored() {
    std::vector<std::string> lost;
    for (const Param& param : checkpoint_.params()) {
      if (param.kind != ParamKind::trainable && param.alias_of.empty()) lost.push_back(param.name);
    }
    if (lost.empty()) return;
    note(
        "DeepSpeed does not restore buffers and frozen parameters from a universal checkpoint, "
        "here " +
        some_of(lost) + ": the new run has to start with the same values, or use reshard");
  }

  void add_notes_on_whole_states() {
    std::set<std::string> keys;
    for (const Param& param : checkpoint_.params()) {
      for (const WholeState& other : param.others) {
        if (!other.value.value.is_none() && !is_computed_anew(other)) keys.insert(other.key);
      }
    }
    for (const std::string& key : keys) {
      note("the optimizer's state '" + key +
           "' is one value for a whole parameter or many; it is left out, and an optimizer that "
           "needs it, as NAdam and ASGD do, stops at its first step with KeyError: use reshard");
    }
  }

  // base_optimizer_state of the first file; None at stages 0 and 3.
  Value base_optimizer_state() const {
    if (checkpoint_.files().optim.empty()) return {};
    return checkpoint_.files()
        .optim.front()
        .archive->root()
        .find_or_none(keys::kOptimizerStateDict)
        .find_or_none(keys::kBaseOptimizerState);
  }

  bool is_elastic() const { return base_optimizer_state().is(Kind::list); }

  bool has_muon() const {
    const Value groups = base_optimizer_state().find_or_none(keys::kParamGroups);
    return std::any_of(
        groups.sequence_or_empty().begin(), groups.sequence_or_empty().end(),
        [](const Value& group) { return group.find_or_none(keys::kUseMuon).is_true(); });
  }

  bool has_fused_experts() const {
    const auto& params = checkpoint_.params();
    return std::any_of(params.begin(), params.end(),
                       [](const Param& param) { return param.form.ep_num_experts.has_value(); });
  }

  // The loader of stage 3 reads Adam's states and the first group's hyper-parameters.
  void add_stage3_notes() {
    std::vector<std::string> without_adam;
    std::set<std::string> unread;
    bool has_step = true;
    for (const Param& param : checkpoint_.params()) {
      if (!is_trained(param)) continue;
      size_t adam = 0;
      for (const ParamState& state : param.states) {
        const bool read = state.key == "exp_avg" || state.key == "exp_avg_sq";
        adam += read ? 1 : 0;
        if (!read) unread.insert(state.key);
      }
      if (adam < 2) without_adam.push_back(param.name);
      has_step = has_step && param.step.archive != nullptr;
    }
    if (!without_adam.empty()) {
      note(
          "DeepSpeed's stage 3 loads universal checkpoints of Adam only, and will not load this "
          "one: no exp_avg or exp_avg_sq for " +
          some_of(without_adam));
    } else if (!has_step) {
      note("DeepSpeed's stage 3 loads no universal checkpoint without a step count");
    }
    if (!unread.empty()) {
      note("DeepSpeed's stage 3 does not read " + some_of({unread.begin(), unread.end()}) +
           "; reshard carries it");
    }
    if (shares_step()) {
      note(kSharedStep);
    }
    if (groups_differ()) {
      note(
          "DeepSpeed's stage 3 gives every parameter group the hyper-parameters of the first one; "
          "here they differ, and reshard keeps them");
    }
  }

  // The loader gives all sub-groups the same step tensor. torch's own Adam then increments it once
  // for each of them.
  bool shares_step() const {
    const TorchArchive& archive = *checkpoint_.files().optim.front().archive;
    const Value state = archive.root().find_or_none(keys::kOptimizerStateDict);
    if (state.find_or_none(keys::kFp32FlatGroups).sequence_or_empty().size() < 2) return false;
    const auto& params = checkpoint_.params();
    return std::any_of(params.begin(), params.end(), [](const Param& param) {
      return param.step.archive != nullptr && TorchArchive::is_tensor(param.step.value);
    });
  }

  bool groups_differ() const {
    const TorchArchive& archive = *checkpoint_.files().optim.front().archive;
    const Value inner = archive.root()
                            .find_or_none(keys::kOptimizerStateDict)
                            .find_or_none(keys::kOptimizerStateDict);
    const auto groups = inner.find_or_none(keys::kParamGroups).sequence_or_empty();
    for (const Value& group : groups) {
      if (!same_settings(groups.front(), group)) return true;
    }
    return false;
  }

  // Compares only numbers and flags: group names and lists of parameters differ anyway.
  static bool same_settings(const Value& a, const Value& b) {
    if (!a.is_mapping() || !b.is_mapping()) return true;
    for (const auto& [key, value] : a.as_dict().items) {
      if (!key.is(Kind::string) || key.as_string() == "params") continue;
      if (!same_numbers(value, b.find_or_none(key.as_string()))) return false;
    }
    return true;
  }
  static bool same_numbers(const Value& a, const Value& b) {
    const auto is_number = [](const Value& v) {
      return v.is(Kind::integer) || v.is(Kind::real) || v.is(Kind::boolean);
    };
    if (is_number(a) && is_number(b)) {
      if (a.is(Kind::boolean) || b.is(Kind::boolean)) {
        return a.kind() == b.kind() && a.as_bool() == b.as_bool();
      }
      return a.as_real() == b.as_real();
    }
    const auto left = a.sequence_or_empty();
    const auto right = b.sequence_or_empty();
    if (left.size() != right.size()) return false;
    for (size_t i = 0; i < left.size(); ++i) {
      if (is_number(left[i]) && is_number(right[i]) && !same_numbers(left[i], right[i])) {
        return false;
      }
    }
    return true;
  }

  void note(std::string text) { notes_.push_back(std::move(text)); }

  const Checkpoint& checkpoint_;
  int stage_;
  std::vector<std::string> notes_;
};

}  // namespace

std::vector<std::string> loader_notes(const Checkpoint& checkpoint) {
  return LoaderNotes(checkpoint).of_checkpoint();
}

std::vector<std::string> going_on_notes(const Checkpoint& checkpoint) {
  return LoaderNotes(checkpoint).of_other_framework();
}

std::vector<std::string> start_notes(const Checkpoint& weights, const InitialStates& initial) {
  return LoaderNotes(weights).of_start(initial);
}

}  // namespace dsckpt
