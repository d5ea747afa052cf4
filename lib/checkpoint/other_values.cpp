#include "checkpoint/other_values.h"

#include <algorithm>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/bytes.h"
#include "base/keyed_hash.h"
#include "base/text.h"
#include "checkpoint/made_values.h"
#include "checkpoint/state_dicts.h"
#include "dsckpt/error.h"

namespace dsckpt {
namespace {

using pickle::Document;
using pickle::Kind;
using pickle::Value;

std::vector<WeightsTensor> weights_in(const Checkpoint& values) {
  std::vector<WeightsTensor> tensors;
  for (const Param& param : values.params()) {
    tensors.push_back({param.name, param.weight, param.alias_of});
  }
  return tensors;
}

std::string keys_text(const std::vector<ParamState>& states) {
  std::vector<std::string> keys;
  for (const ParamState& state : states) keys.push_back(state.key);
  return keys.empty() ? "none" : some_of(keys);
}

// A run of DeepSpeed that continues another framework's training.
class OtherValues {
 public:
  OtherValues(CheckpointDraft& draft, const Checkpoint& values, const Checkpoint& base)
      : draft_(draft), values_(values), base_(base), where_(values.tag_folder().string()) {}

  void read() {
    give_weights(draft_, base_, {weights_in(values_), where_});
    for (const Param& param : values_.params()) {
      if (!param.states.empty() || param.step.archive != nullptr) {
        stepped_.emplace(param.name, &param);
      }
    }
    const std::vector<ParamGroup>& groups = values_.groups();
    for (size_t i = 0; i < groups.size(); ++i) {
      for (const std::string& name : groups[i].params) group_of_.emplace(name, i);
    }
    for (const Param& param : draft_.params) {
      if (!param.alias_of.empty()) aliases_[param.alias_of].push_back(param.name);
    }
    for (Param& param : draft_.params) {
      if (is_trained(param)) take_states(param);
    }
    for (ParamGroup& group : draft_.groups) take_settings(group);
    take_steps();
    draft_.notes.insert(draft_.notes.end(), values_.notes().begin(), values_.notes().end());
    draft_.notes.push_back(
        "the learning rate schedule, the counters and the program's data are "
        "those of " +
        base_.tag_folder().string());
  }

 private:
  // The other checkpoint may have the states under another name of a tied parameter.
  const Param* found(const Param& param) const {
    const auto own = stepped_.find(param.name);
    if (own != stepped_.end()) return own->second;
    const auto tied = aliases_.find(param.name);
    if (tied == aliases_.end()) return nullptr;
    for (const std::string& name : tied->second) {
      const auto other = stepped_.find(name);
      if (other != stepped_.end()) return other->second;
    }
    return nullptr;
  }

  void take_states(Param& param) {
    const Param* other = found(param);
    if (other == nullptr) {
      throw InconsistentError(
          {.file = where_, .tensor = param.name},
          "has no optimizer states, but is trained in " + base_.tag_folder().string());
    }
    const auto same_keys = [](const ParamState& a, const ParamState& b) { return a.key == b.key; };
    const bool alike =
        param.states.empty() || (param.states.size() == other->states.size() &&
                                 std::is_permutation(param.states.begin(), param.states.end(),
                                                     other->states.begin(), same_keys));
    if (!alike) {
      throw InconsistentError({.file = where_, .tensor = param.name},
                              "has the states " + keys_text(other->states) + ", in " +
                                  base_.tag_folder().string() + " " + keys_text(param.states));
    }
    std::vector<ParamState> states;
    for (const ParamState& state : other->states) {
      const auto old = std::find_if(param.states.begin(), param.states.end(),
                                    [&](const ParamState& each) { return each.key == state.key; });
      const bool is_new = old == param.states.end();
      const DType dtype = is_new ? DType::float32 : old->value.dtype();
      states.push_back(
          {state.key, filled_up(param, state.value.to(dtype), is_new ? nullptr : &*old)});
    }
    if (!param.states.empty()) {  // in the order of `base`
      std::vector<ParamState> sorted;
      for (const ParamState& old : param.states) {
        sorted.push_back(*std::find_if(states.begin(), states.end(), [&](const ParamState& each) {
          return each.key == old.key;
        }));
      }
      states = std::move(sorted);
    }
    param.states = std::move(states);
    param.others = other->others;
    take_step(param, *other);
  }

  // The rows of a vocabulary that only fill it up, which other frameworks do not have, are those of
  // the run's own state.
  static TensorSource filled_up(const Param& param, TensorSource value, const ParamState* own) {
    const Shape& whole = param.weight.shape();
    if (value.shape() == whole || !param.form.vocab_rows) return value;
    const int64_t rows = value.shape().front();
    Shape padding = whole;
    padding.front() -= rows;
    const TensorSource last = own == nullptr ? TensorSource::zeros(value.dtype(), padding)
                                             : own->value.narrow(0, rows, padding.front());
    return TensorSource::cat(0, {std::move(value), last});
  }

  // A number stays a number: DeepSpeed's own Adam has one, torch's a tensor.
  void take_step(Param& param, const Param& other) {
    if (other.step.archive == nullptr) return;
    const std::optional<double> number = step_of(other);
    if (!number) return;
    if (!(*number >= 0 && *number < kMostWhole)) {
      throw CorruptError({.file = where_, .tensor = param.name}, "has a step that is not a count");
    }
    const auto count = static_cast<int64_t>(*number);
    steps_.emplace(param.name, count);
    most_steps_ = std::max(most_steps_, count);
    if (param.step.archive == nullptr || !param.step.value.is(Kind::integer)) {
      param.step = other.step;
      return;
    }
    Document document;
    document.set_root(Document::integer(count));
    param.step = keep(std::move(document), *other.step.archive);
  }

  // Values that are put together; those of the same file have different places.
  ShardValue keep(Document document, const TorchArchive& made_of) {
    // Behind all archives of the file.
    const Extent place{made_of.file(), ~uint64_t{0} - draft_.item_archives.size(), 0};
    draft_.item_archives.push_back(std::make_unique<TorchArchive>(
        TorchArchive::of_values(draft_.inputs, place, std::move(document))));
    return {draft_.item_archives.back().get(), draft_.item_archives.back()->root()};
  }

  // ZeRO counts the steps of a flat group once.
  void take_steps() {
    for (const ParamGroup& group : draft_.groups) {
      const std::string* first = nullptr;
      for (const std::string& name : group.params) {
        const auto step = steps_.find(name);
        if (step == steps_.end()) continue;
        if (first == nullptr) first = &name;
        if (step->second == steps_.at(*first)) continue;
        throw InconsistentError({.file = where_, .tensor = name},
                                "was stepped " + counted(step->second, "time") + ", '" + *first +
                                    "' of the same group " + std::to_string(steps_.at(*first)));
      }
    }
    if (steps_.empty()) return;
    draft_.facts.global_steps = most_steps_;
    draft_.facts.tag = "global_step" + std::to_string(most_steps_);
  }

  // The settings of the group in the other checkpoint that has all of its parameters.
  const ParamGroup* group_like(const ParamGroup& group) const {
    std::set<size_t> having = groups_with(group.params.front());
    for (size_t i = 1; i < group.params.size() && !having.empty(); ++i) {
      const std::set<size_t> with = groups_with(group.params[i]);
      std::erase_if(having, [&](size_t other) { return !with.contains(other); });
    }
    return having.empty() ? nullptr : &values_.groups()[*having.begin()];
  }

  // The numbers of the groups that have the parameter under any of its names.
  std::set<size_t> groups_with(const std::string& param) const {
    std::set<size_t> numbers;
    const auto add = [&](const std::string& name) {
      const auto found = group_of_.find(name);
      if (found != group_of_.end()) numbers.insert(found->second);
    };
    add(param);
    const auto names = aliases_.find(param);
    if (names != aliases_.end()) std::for_each(names->second.begin(), names->second.end(), add);
    return numbers;
  }

  void take_settings(ParamGroup& group) {
    if (group.settings.archive == nullptr || group.params.empty()) return;
    const std::string named = "the group of '" + group.params.front() + "'";
    const ParamGroup* other = group_like(group);
    if (other == nullptr || other->settings.archive == nullptr) {
      draft_.notes.push_back("the hyper-parameters of " + named + " are those of " +
                             base_.tag_folder().string());
      return;
    }
    Document document;
    const Value dict = document.dict();
    for (const auto& [key, value] : group.settings.value.as_dict().items) {
      if (!key.is(Kind::string)) return;
      const std::string_view name = key.as_string();
      if (name == "params") continue;
      const auto given = other->settings.value.find(name);
      const ShardValue& from = given ? other->settings : group.settings;
      const auto copy = copy_setting(document, *from.archive, given ? *given : value);
      if (!copy) {
        draft_.notes.push_back("'" + std::string(name) + "' of " + named +
                               " is not a number: its hyper-parameters are those of " +
                               base_.tag_folder().string());
        return;
      }
      document.set_item(dict, document.string(name), *copy);
    }
    document.set_root(dict);
    group.settings = keep(std::move(document), *other->settings.archive);
  }

  CheckpointDraft& draft_;
  const Checkpoint& values_;
  const Checkpoint& base_;
  const std::string where_;
  KeyedMap<std::string_view, const Param*> stepped_;
  KeyedMap<std::string_view, size_t> group_of_;              // of the other checkpoint, by name
  KeyedMap<std::string, std::vector<std::string>> aliases_;  // by owner
  KeyedMap<std::string, int64_t> steps_;
  int64_t most_steps_ = 0;
};

}  // namespace

Checkpoint with_values(std::shared_ptr<const Checkpoint> base,
                       std::shared_ptr<const Checkpoint> values) {
  refuse_values_into(*base);
  if (values->facts().states != StatesTold::yes) throw unnamed_states(values->tag_folder());
  CheckpointDraft draft = base->draft();
  draft.facts.values = ValuesFrom::foreign;
  OtherValues(draft, *values, *base).read();
  draft.run = std::move(base);
  draft.values = std::move(values);
  return Checkpoint(std::move(draft));
}

}  // namespace dsckpt
