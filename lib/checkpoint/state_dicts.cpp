#include "checkpoint/state_dicts.h"

#include <algorithm>
#include <set>
#include <string_view>
#include <tuple>
#include <utility>

#include "base/keyed_hash.h"
#include "base/text.h"
#include "checkpoint/find/weights_files.h"
#include "checkpoint/order_match.h"
#include "dsckpt/error.h"
#include "format/tensors_in.h"

namespace dsckpt {
namespace fs = std::filesystem;
namespace {

using pickle::Kind;
using pickle::Value;

constexpr size_t kMostNumberDigits = 18;  // of an optimizer's number

// A buffer of torch's batch norm.
bool is_batch_norms(std::string_view name) {
  const std::string_view last = name.substr(name.rfind('.') + 1);
  return last == "running_mean" || last == "running_var" || last == "num_batches_tracked";
}

class StateDicts {
 public:
  StateDicts(CheckpointDraft& draft, std::vector<ModelEntry> model, const OptimizerDict* optimizer,
             bool in_order)
      : draft_(draft), model_(std::move(model)), optimizer_(optimizer), in_order_(in_order) {}

  void read() {
    draft_.facts.run = RunKind::foreign;
    find_owners();
    const bool is_assigned = optimizer_ == nullptr || name_params();
    draft_.facts.frozen_known = optimizer_ != nullptr && is_assigned;
    for (size_t i = 0; i < model_.size(); ++i) add_param(i, is_assigned);
    sort_params(draft_.params);
    if (optimizer_ == nullptr) {
      if (draft_.options.optimizer_states)
        draft_.notes.emplace_back("there are no optimizer states");
      return;
    }
    if (!is_assigned) {
      draft_.facts.states = StatesTold::no;
      if (!draft_.options.optimizer_states) return;
      draft_.notes.emplace_back(
          std::string("the optimizer numbers its parameters, and ") +
          (in_order_ ? "their order and shapes do not tell which is which"
                     : "files of safetensors do not keep the order that they had in the model") +
          ": its states are left out");
    } else if (draft_.options.optimizer_states) {
      add_groups();
    }
    note_told_by_type(draft_, told_by_type_);
  }

 private:
  bool may_be_owned(size_t i) const {
    return owner_[i] == i && may_be_trained(model_[i].value.dtype(), model_[i].name);
  }

  // The optimizer may have any of the names of the same elements: that one is the owner.
  void find_owners() {
    owner_.resize(model_.size());
    KeyedSet<std::string> known;
    if (optimizer_ != nullptr) {
      for (const auto& group : optimizer_->groups) {
        known.insert(group.params.begin(), group.params.end());
        known.insert(group.names.begin(), group.names.end());
      }
    }
    KeyedMap<std::string, size_t> first;
    for (const bool preferred : {true, false}) {
      for (size_t i = 0; i < model_.size(); ++i) {
        if (known.contains(model_[i].name) != preferred || model_[i].place.empty()) continue;
        first.emplace(model_[i].place, i);
      }
    }
    for (size_t i = 0; i < model_.size(); ++i) {
      owner_[i] = model_[i].place.empty() ? i : first.at(model_[i].place);
    }
  }

  // The key of each parameter in the optimizer.
  bool name_params() {
    key_.resize(model_.size());
    KeyedMap<std::string_view, size_t> by_name;
    for (size_t i = 0; i < model_.size(); ++i) by_name.emplace(model_[i].name, i);
    bool numbered = false;
    std::vector<std::string> unknown;
    for (const OptimizerDict::Group& group : optimizer_->groups) {
      const bool has_names = group.names.size() == group.params.size();
      for (size_t i = 0; i < group.params.size(); ++i) {
        const std::string& name = has_names ? group.names[i] : group.params[i];
        const auto found = by_name.find(name);
        if (found == by_name.end()) {
          numbered = numbered || is_digits(name);
          unknown.push_back(name);
          continue;
        }
        if (!key_[owner_[found->second]].empty()) {
          throw InconsistentError({.file = draft_.folder.path.string(), .tensor = name},
                                  "is in two groups of the optimizer");
        }
        key_[owner_[found->second]] = group.params[i];
      }
    }
    if (unknown.empty()) return true;
    if (numbered && std::all_of(unknown.begin(), unknown.end(), is_digits)) {
      return number_params(by_name);
    }
    throw InconsistentError({.file = draft_.folder.path.string(), .tensor = unknown.front()},
                            "is one of " + counted(unknown.size(), "parameter") +
                                " that the optimizer has and the model lacks:" + listed(unknown));
  }

  // The user's order comes first: it is more than that of the file.
  bool number_params(const KeyedMap<std::string_view, size_t>& by_name) {
    const auto shape_of = [&](const std::string& name) {
      const auto found = by_name.find(name);
      return found == by_name.end() ? nullptr : &model_[found->second].value.shape();
    };
    const auto state_shape = [&](const std::string& number) {
      const auto state = optimizer_->states.find(number);
      return state == optimizer_->states.end() ? std::nullopt : state->second.shape;
    };
    std::vector<std::vector<std::string>> groups;
    for (const OptimizerDict::Group& group : optimizer_->groups) {
      groups.push_back(group.params);
      for (const std::string& number : group.params) {
        if (!is_digits(number) || number.size() > kMostNumberDigits) return false;
      }
    }
    auto names = names_of_numbers(groups, draft_.options.order, shape_of, state_shape);
    if (!names && draft_.options.order.names.empty() && in_order_) {
      names = names_of_numbers(groups, {.names = trainable_names()}, shape_of, state_shape);
      if (names) {
        draft_.notes.emplace_back(
            "the optimizer's states have no names; they are given to the parameters in the order "
            "of the model");
      }
    }
    if (!names) return false;
    for (const auto& [number, name] : *names) {
      const auto found = by_name.find(name);
      if (found == by_name.end()) {
        throw InconsistentError({.file = draft_.folder.path.string(), .tensor = printable(name)},
                                "is in the groups of --like, but not in the model");
      }
      std::string& key = key_[owner_[found->second]];
      if (!key.empty()) {
        throw InconsistentError({.file = draft_.folder.path.string(), .tensor = printable(name)},
                                "is in two places of the optimizer");
      }
      key = number;
    }
    return true;
  }

  std::vector<std::string> trainable_names() const {
    std::vector<std::string> names;
    for (size_t i = 0; i < model_.size(); ++i) {
      if (may_be_owned(i)) names.push_back(model_[i].name);
    }
    return names;
  }

  ParamKind kind_of(size_t i, bool is_assigned) {
    const size_t owner = owner_[i];
    if (optimizer_ == nullptr || !is_assigned) {
      return may_be_owned(owner) ? ParamKind::trainable : ParamKind::buffer;
    }
    if (!key_[owner].empty()) return ParamKind::trainable;
    if (!may_be_owned(owner)) return ParamKind::buffer;
    ++told_by_type_;
    return ParamKind::frozen;
  }

  void add_param(size_t i, bool is_assigned) {
    ModelEntry& entry = model_[i];
    Param param{.name = entry.name, .kind = kind_of(i, is_assigned), .weight = entry.value};
    if (owner_[i] != i) param.alias_of = model_[owner_[i]].name;
    param.requires_grad = param.kind == ParamKind::trainable;
    if (param.requires_grad && size_of(param.weight.dtype()) < size_of(DType::float32)) {
      draft_.facts.has_masters = false;
    }
    if (owner_[i] == i && is_assigned && optimizer_ != nullptr) {
      name_of_.emplace(key_[i], entry.name);
      const auto found = optimizer_->states.find(key_[i]);
      if (found != optimizer_->states.end() && !key_[i].empty()) {
        take_states(param, found->second);
      }
    }
    draft_.params.push_back(std::move(param));
  }

  void take_states(Param& param, const OptimizerEntry& entry) {
    if (entry.step.archive != nullptr) {
      constexpr double kMostSteps = 1e15;
      const std::optional<double> number = entry.step.archive->scalar(entry.step.value);
      if (!number) throw CorruptError({.tensor = param.name}, "has a step that is not a number");
      auto& steps = draft_.facts.global_steps;
      if (*number >= 0 && *number < kMostSteps) {
        steps = std::max(steps.value_or(0), static_cast<int64_t>(*number));
      }
    }
    if (!draft_.options.optimizer_states) return;
    param.step = entry.step;
    for (const ParamState& state : entry.tensors) {
      if (state.value.shape() != param.weight.shape()) {
        throw InconsistentError({.file = draft_.folder.path.string(), .tensor = param.name},
                                "has the state '" + state.key + "' of shape " +
                                    to_text(state.value.shape()) + ", itself " +
                                    to_text(param.weight.shape()));
      }
      param.states.push_back(state);
    }
    if (!entry.others.empty()) param.others = entry.others;
  }

  void add_groups() {
    for (const OptimizerDict::Group& from : optimizer_->groups) {
      ParamGroup group{.params = {}, .settings = from.settings};
      for (const std::string& key : from.params) {
        const auto found = name_of_.find(key);
        if (found == name_of_.end()) return draft_.groups.clear();
        group.params.push_back(found->second);
      }
      draft_.groups.push_back(std::move(group));
    }
  }

  CheckpointDraft& draft_;
  std::vector<ModelEntry> model_;
  const OptimizerDict* optimizer_;
  bool in_order_;
  std::vector<size_t> owner_;     // of each entry, itself or the one that it is tied to
  std::vector<std::string> key_;  // of each entry in the optimizer; "" of what that has not
  KeyedMap<std::string, std::string> name_of_;  // by the optimizer's key
  size_t told_by_type_ = 0;
};

}  // namespace

bool may_be_trained(DType dtype, std::string_view name) {
  return is_floating_point(dtype) && !is_batch_norms(name);
}

int place_of_kind(const Param& param) {
  if (!param.alias_of.empty()) return 3;
  return param.kind == ParamKind::buffer ? 0 : param.kind == ParamKind::frozen ? 1 : 2;
}

void sort_params(std::vector<Param>& params) {
  std::stable_sort(params.begin(), params.end(), [](const Param& a, const Param& b) {
    return place_of_kind(a) < place_of_kind(b);
  });
}

bool is_before_in_adam(const ParamState& a, const ParamState& b) {
  const auto rank = [](const std::string& key) {
    return key == "exp_avg" ? 0 : key == "exp_avg_sq" ? 1 : 2;
  };
  return std::tuple(rank(a.key), std::string_view(a.key)) <
         std::tuple(rank(b.key), std::string_view(b.key));
}

void note_told_by_type(CheckpointDraft& draft, size_t count) {
  if (count == 0) return;
  draft.notes.push_back(counted(count, "tensor") +
                        " that the optimizer does not have count as frozen parameters; nothing "
                        "says which of them are buffers");
}

std::vector<OptimizerDict::Group> optimizer_groups(const TorchArchive& archive,
                                                   const Value& state_dict) {
  std::vector<OptimizerDict::Group> groups;
  for (const Value& from : state_dict.at("param_groups").as_sequence()) {
    OptimizerDict::Group& group = groups.emplace_back();
    for (const Value& key : from.at("params").as_sequence()) {
      group.params.push_back(optimizer_key(key));
    }
    for (const Value& name : from.find_or_none("param_names").sequence_or_empty()) {
      if (name.is(Kind::string)) group.names.emplace_back(name.as_string());
    }
    group.settings = {&archive, from};
  }
  return groups;
}

void read_state_dicts(CheckpointDraft& draft, std::vector<ModelEntry> model,
                      const OptimizerDict* optimizer, bool in_order) {
  StateDicts(draft, std::move(model), optimizer, in_order).read();
}

UnsupportedError unnamed_states(const fs::path& folder) {
  return UnsupportedError({.file = folder.string()},
                          "numbers the parameters of its optimizer instead of naming them")
      .with_hint(
          "--param-names FILE names them: `for name, _ in model.named_parameters(): print(name)`; "
          "where groups part layers of one shape, only reshard --like CHECKPOINT does, of a run "
          "with the same groups");
}

void refuse_foreign_options(const CheckpointDraft& draft, const std::string& what) {
  if (!draft.options.tp_rules.empty()) {
    throw UsageError("--tp-rule is for slices that no file tells how to put together; this is " +
                     what + ", which says where its parts belong");
  }
}

const KeyedDict& chosen_model(const std::string& name, const TrainingFile& file,
                              const std::string& display) {
  std::vector<std::string> names;
  for (const KeyedDict& model : file.models) {
    if (!name.empty() && model.key == name) return model;
    names.push_back(model.key);
  }
  if (names.empty()) throw InconsistentError({.file = display}, "has no tensors of a model");
  if (names == std::vector<std::string>{""} && !name.empty()) throw no_such_model(name, display);
  if (!name.empty()) {
    throw UsageError("--model: no model in " + display + " is called '" + name + "', but " +
                     some_of(names));
  }
  if (names.size() == 1) return file.models.front();
  throw InconsistentError({.file = display},
                          "holds " + counted(names.size(), "model") + ": " + some_of(names))
      .with_hint("--model " + shell_word(names.front()) + " reads one of them");
}

std::vector<const KeyedDict*> optimizers_of(const TrainingFile& file, const KeyedDict& model) {
  std::vector<const KeyedDict*> all;
  std::vector<const KeyedDict*> own;
  for (const KeyedDict& optimizer : file.optimizers) {
    all.push_back(&optimizer);
    const bool is_own = !model.key.empty() && optimizer.key.find(model.key) != optimizer.key.npos;
    if (is_own) own.push_back(&optimizer);
  }
  return own.empty() ? all : own;
}

UnsupportedError several_optimizers(const TrainingFile& file, const std::string& display) {
  return UnsupportedError({.file = display}, "has " + counted(file.optimizers.size(), "optimizer") +
                                                 ", and nothing says which is the model's")
      .with_hint("zero-to-fp32 without --states writes the weights");
}

}  // namespace dsckpt
