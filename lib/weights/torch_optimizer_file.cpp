#include "weights/torch_optimizer_file.h"

#include <algorithm>
#include <utility>

#include "base/text.h"
#include "dsckpt/error.h"
#include "format/torch_archive.h"
#include "io/far_files.h"
#include "job/hyper_parameters.h"
#include "job/source.h"

namespace dsckpt {
namespace {

using pickle::Document;
using pickle::Value;

constexpr const char* kWithoutIt = "--states writes the optimizer's states of each parameter";

class TorchOptimizerFile {
 public:
  TorchOptimizerFile(const Checkpoint& checkpoint, std::vector<std::string>& notes)
      : checkpoint_(checkpoint), notes_(notes) {}

  void lay_out(PlanBuilder& plan) && {
    const Value states = document().dict();
    std::vector<Value> groups;
    for (const ParamGroup& group : checkpoint_.groups()) groups.push_back(add(group, states));
    const Value root = document().dict();
    document().set_item(root, document().intern("state"), states);
    document().set_item(root, document().intern("param_groups"),
                        document().list(std::move(groups)));
    document().set_root(root);
    std::move(writer_).lay_out(plan, std::string(kTorchOptimizerFile));
  }

 private:
  Document& document() { return writer_.document(); }

  void note_once(std::string text) {
    if (std::find(notes_.begin(), notes_.end(), text) == notes_.end()) {
      notes_.push_back(std::move(text));
    }
  }

  Value add(const ParamGroup& group, const Value& states) {
    std::vector<Value> numbers;
    std::vector<Value> names;
    bool adam = false;
    for (const std::string& name : group.params) {
      const Param* param = checkpoint_.find(name);
      if (param == nullptr) throw UnsupportedError({.tensor = name}, "is not in the files");
      const Value number = Document::integer(count_++);
      const Value state = state_of(*param);
      if (!state.as_dict().items.empty()) document().set_item(states, number, state);
      numbers.push_back(number);
      names.push_back(document().string(name));
      adam = adam || is_adam(param->states);
    }
    const Value dict = document().dict();
    const auto set = [&](std::string_view key, const Value& value) {
      document().set_item(dict, document().intern(key), value);
    };
    const std::vector<HyperParameter> options = hyper_parameters(
        checkpoint_, group, adam, plain_, [&](std::string text) { note_once(std::move(text)); });
    if (options.empty()) {
      throw UnsupportedError({.file = checkpoint_.tag_folder().string()},
                             "has no hyper-parameters of the optimizer's groups");
    }
    for (const HyperParameter& option : options) {
      if (option.key != "param_names") set(option.key, option.value(writer_));
    }
    set("params", document().list(std::move(numbers)));
    set("param_names", document().list(std::move(names)));
    return dict;
  }

  Value state_of(const Param& param) {
    const Value dict = document().dict();
    const auto set = [&](std::string_view key, const Value& value) {
      document().set_item(dict, document().intern(key), value);
    };
    if (param.step.archive != nullptr) set("step", whole(param, "step", param.step));
    for (const ParamState& state : param.states) {
      set(state.key, writer_.tensor(without_padding(param, state.value)));
    }
    for (const WholeState& other : param.others) {
      if (is_computed_anew(other)) continue;
      if (!other.same_on_all_ranks) refuse(param, other.key, "is not the same on all ranks");
      set(other.key, whole(param, other.key, other.value));
    }
    return dict;
  }

  // Every step has a storage of its own: torch would increment a shared one for each parameter.
  Value whole(const Param& param, const std::string& key, const ShardValue& value) {
    if (TorchArchive::is_tensor(value.value)) {
      return writer_.tensor(value.archive->tensor(value.value));
    }
    if (!plain_.is_plain(value.value)) refuse(param, key, "is not plain data");
    return writer_.import(*value.archive, value.value);
  }

  [[noreturn]] static void refuse(const Param& param, const std::string& key, const char* why) {
    throw UnsupportedError({.tensor = param.name},
                           "the optimizer's state '" + printable(key) + "' " + why)
        .with_hint(kWithoutIt);
  }

  const Checkpoint& checkpoint_;
  std::vector<std::string>& notes_;
  TorchArchiveWriter writer_;
  PlainData plain_;
  int64_t count_ = 0;
};

}  // namespace

void lay_out_torch_optimizer(PlanBuilder& plan, const Checkpoint& checkpoint,
                             std::vector<std::string>& notes) {
  if (checkpoint.facts().from_weights()) {
    throw UsageError("--torch-optimizer: " + shown_path(checkpoint.tag_folder()) +
                     " has only weights, without an optimizer");
  }
  if (checkpoint.facts().states != StatesTold::yes) throw unassigned_states(checkpoint);
  if (checkpoint.groups().empty()) throw unknown_groups(checkpoint, kWithoutIt);
  TorchOptimizerFile(checkpoint, notes).lay_out(plan);
  notes.push_back(std::string(kTorchOptimizerFile) + " is for an optimizer of " +
                  groups_text(checkpoint.groups()) + ", in the order of `param_names`");
}

}  // namespace dsckpt
