// torch.distributed.checkpoint (DCP): a file `.metadata`, and the chunks of all values in files
// beside it. FSDP2, Accelerate's and the Trainer's FSDP, torchtitan and Lightning save with it.
// Layout: LAYOUTS.md; source: torch/distributed/checkpoint/default_planner.py, state_dict.py
// (_init_optim_state, _flatten_optim_state_dict), _nested_dict.py.

#include <tbb/parallel_for.h>

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/keyed_hash.h"
#include "base/text.h"
#include "checkpoint/dcp_files.h"
#include "checkpoint/dcp_keys.h"
#include "checkpoint/layout.h"
#include "checkpoint/made_values.h"
#include "checkpoint/state_dicts.h"
#include "dsckpt/error.h"
#include "format/tensors_in.h"

namespace dsckpt {
namespace {

using pickle::Document;
using pickle::Kind;
using pickle::Value;

constexpr std::string_view kParamsKey = "params";
constexpr std::string_view kParamNamesKey = "param_names";
constexpr std::string_view kStepKey = "step";

std::string setting_text(const Value& value) {
  switch (value.kind()) {
    case Kind::none:
      return "N";
    case Kind::boolean:
      return value.as_bool() ? "T" : "F";
    case Kind::integer:
      return std::to_string(value.as_int());
    case Kind::real: {
      const double real = value.as_real();
      return "r" + std::string(reinterpret_cast<const char*>(&real), sizeof real);
    }
    case Kind::string:
      return "s" + std::to_string(value.as_string().size()) + ":" + std::string(value.as_string());
    default: {
      std::string text = value.is(Kind::tuple) ? "(" : "[";
      for (const Value& item : value.sequence_or_empty()) text += setting_text(item) + ",";
      return text + ")";
    }
  }
}

// The optimizer's groups.
class DcpGroups {
 public:
  DcpGroups(CheckpointDraft& draft, const DcpFiles& files, const DcpKeys::Optimizer& optimizer)
      : draft_(draft), files_(files), optimizer_(optimizer) {}

  // Names of all parameters that the groups have, or numbers.
  std::vector<std::vector<std::string>> read(bool settings) {
    if (optimizer_.whole_groups) {
      read_whole(*optimizer_.whole_groups);
    } else if (!optimizer_.grouped.empty()) {
      read_nested(settings);
    } else {
      read_flat(settings);
    }
    std::vector<std::vector<std::string>> names;
    for (const Made& group : made_) names.push_back(group.params);
    return names;
  }

  // The names that torch was given beside the numbers (`param_names`), in the same order.
  std::vector<std::vector<std::string>> param_names() const {
    std::vector<std::vector<std::string>> names;
    for (const Made& group : made_) names.push_back(group.names);
    return names;
  }

  // Calls parameters as `rename` does.
  template <typename F>
  void rename(const F& rename) {
    for (Made& group : made_) {
      for (std::string& name : group.params) name = rename(name);
    }
  }

  // Into the draft. Not if parameters have numbers only.
  void put() {
    for (size_t i = 0; i < made_.size(); ++i) {
      Made& group = made_[i];
      ParamGroup& made = draft_.groups.emplace_back();
      made.params = std::move(group.params);
      if (!group.document) continue;
      draft_.item_archives.push_back(std::make_unique<TorchArchive>(
          TorchArchive::of_values(draft_.inputs, {group.file, i, 0}, std::move(*group.document))));
      const TorchArchive& archive = *draft_.item_archives.back();
      made.settings = {&archive, archive.root()};
    }
    if (left_out_.empty()) return;
    draft_.notes.push_back("settings of the optimizer that are not numbers are left out: " +
                           some_of({left_out_.begin(), left_out_.end()}));
  }

 private:
  struct Made {
    std::vector<std::string> params = {};
    std::vector<std::string> names = {};
    std::optional<Document> document = {};
    FileId file = 0;
  };

  std::vector<std::string> names_in(const Value& params) {
    std::vector<std::string> names;
    for (const Value& name : params.sequence_or_empty()) {
      names.push_back(optimizer_key(name));
      if (known_.insert(names.back()).second) continue;
      throw InconsistentError({}, "has '" + names.back() + "' in two places");
    }
    return names;
  }

  static std::vector<std::string> texts_in(const Value& list) {
    std::vector<std::string> texts;
    for (const Value& text : list.sequence_or_empty()) {
      if (text.is(Kind::string)) texts.emplace_back(text.as_string());
    }
    return texts;
  }

  void set(Made& group, const std::string& key, const TorchArchive& archive, const Value& value) {
    Document& document = *group.document;
    const auto copy = copy_setting(document, archive, value);
    if (!copy) {
      left_out_.insert(key);
      return;
    }
    document.set_item(document.root(), document.string(key), *copy);
  }

  static Made& begin(Made& group, FileId file) {
    group.document.emplace();
    group.document->set_root(group.document->dict());
    group.file = file;
    return group;
  }

  void read_whole(const DcpEntry& entry) {
    const TorchArchive archive = files_.open_value(entry);
    in_context({.file = draft_.inputs[archive.file()].display(), .tensor = entry.name()}, [&] {
      for (const Value& group : archive.root().as_sequence()) {
        Made& made = begin(made_.emplace_back(), files_.metadata_file(entry));
        for (const auto& [key, value] : group.as_dict().items) {
          const std::string name(key.as_string());
          if (name == kParamsKey) {
            made.params = names_in(value);
          } else if (name == kParamNamesKey) {
            made.names = texts_in(value);
          } else {
            set(made, name, archive, value);
          }
        }
      }
    });
  }

  void read_nested(bool settings) {
    std::map<int64_t, Made> groups;
    for (const DcpKeys::Grouped& each : optimizer_.grouped) {
      Made& group = groups[each.group];
      const bool is_params = each.key == kParamsKey;
      const bool is_names = each.key == kParamNamesKey;
      if (!is_params && !is_names && !settings) continue;
      if (!group.document) begin(group, files_.metadata_file(each.entry));
      const TorchArchive archive = files_.open_value(each.entry);
      in_context({.file = draft_.inputs[archive.file()].display(), .tensor = each.entry.name()},
                 [&] {
                   if (is_params) {
                     group.params = names_in(archive.root());
                   } else if (is_names) {
                     group.names = texts_in(archive.root());
                   } else {
                     set(group, each.key, archive, archive.root());
                   }
                 });
    }
    for (auto& [number, group] : groups) {
      if (number != static_cast<int64_t>(made_.size())) {
        throw InconsistentError({.file = draft_.folder.path.string()},
                                "has the optimizer's group " + std::to_string(number) +
                                    ", but no group " + std::to_string(made_.size()));
      }
      made_.push_back(std::move(group));
    }
  }

  // A dict of each parameter's own. Those that are equal were one group, or might have been.
  void read_flat(bool settings) {
    std::vector<std::string> order;
    KeyedMap<std::string, std::vector<const DcpKeys::Named*>> by_name;
    for (const DcpKeys::Named& each : optimizer_.flat_settings) {
      auto& some = by_name[each.name];
      if (some.empty()) order.push_back(each.name);
      some.push_back(&each);
    }
    if (!settings) {
      if (!order.empty()) made_.push_back({.params = std::move(order)});
      return;
    }
    std::vector<Made> apart(order.size());
    std::vector<std::string> texts(order.size());
    for (size_t i = 0; i < order.size(); ++i) {
      const auto& some = by_name.at(order[i]);
      Made& made = begin(apart[i], files_.metadata_file(some.front()->entry));
      std::map<std::string, std::string> sorted;
      for (const DcpKeys::Named* each : some) {
        const TorchArchive archive = files_.open_value(each->entry);
        set(made, each->key, archive, archive.root());
      }
      for (const auto& [key, value] : made.document->root().as_dict().items) {
        sorted.emplace(key.as_string(), setting_text(value));
      }
      for (const auto& [key, text] : sorted) texts[i] += key + "=" + text + ";";
    }
    std::map<std::string, size_t> numbers;
    for (size_t i = 0; i < order.size(); ++i) {
      const auto [number, is_new] = numbers.emplace(texts[i], made_.size());
      if (is_new) made_.push_back(std::move(apart[i]));
      made_[number->second].params.push_back(order[i]);
    }
  }

  CheckpointDraft& draft_;
  const DcpFiles& files_;
  const DcpKeys::Optimizer& optimizer_;
  std::vector<Made> made_;
  KeyedSet<std::string> known_;  // an optimizer has a parameter once
  std::set<std::string> left_out_;
};

class DcpReader {
 public:
  explicit DcpReader(CheckpointDraft& draft)
      : draft_(draft), files_(draft), keys_(keys_of(draft, files_)), tensors_(draft, files_) {
    if (keys_.optimizer() != nullptr) states_ = keys_.optimizer()->states;
  }

  void read() {
    draft_.facts.run = RunKind::foreign;
    draft_.facts.mesh.dp = files_.ranks();
    check_optimizers();
    static const DcpKeys::Optimizer kNone;
    DcpGroups groups(draft_, files_, keys_.optimizer() == nullptr ? kNone : *keys_.optimizer());
    const bool lacks_values = files_.lacks_values();
    std::vector<std::vector<std::string>> params;
    if (!lacks_values) params = groups.read(draft_.options.optimizer_states);
    name_params(params, groups.param_names());
    groups.rename([&](const std::string& name) { return renamed(name); });
    for (auto& group : params) {
      for (std::string& name : group) name = renamed(name);
    }
    find_trained(params);
    const bool states = draft_.options.optimizer_states && !numbered_;
    for (const DcpKeys::Named& each : keys_.model()) {
      if (!files_.is_left_out(each.entry)) tensors_.want(each.entry);
    }
    if (states) want_states();
    tensors_.open();
    add_params();
    if (!numbered_) open_steps();
    if (states) {
      add_states();
      groups.put();
      if (lacks_values) {
        draft_.notes.emplace_back("settings of the optimizer lie in lost files; all are left out");
      }
    }
    note_left_out();
    if (draft_.options.allow_missing) note_unsupported();
    if (!draft_.options.optimizer_states) return;
    if (numbered_) {
      draft_.facts.states = StatesTold::no;
      draft_.notes.emplace_back(
          "the optimizer numbers its parameters (optimizer.state_dict() as it is), so its states "
          "are left out; --param-names FILE, or reshard --like CHECKPOINT, of a run with the same "
          "groups, names them, and so does get_optimizer_state_dict of "
          "torch.distributed.checkpoint.state_dict");
    }
  }

 private:
  void check_optimizers() {
    if (keys_.model().empty()) {
      throw InconsistentError({.file = draft_.folder.path.string()},
                              "has no tensors of a model" +
                                  std::string(keys_.has_optimizers() ? ", but an optimizer" : ""));
    }
    if (!draft_.options.optimizer_states || keys_.rivals().empty()) return;
    throw UnsupportedError({.file = draft_.folder.path.string()},
                           "has several optimizers, and nothing says which is the model's: " +
                               some_of(keys_.rivals()));
  }

  static DcpKeys keys_of(const CheckpointDraft& draft, const DcpFiles& files) {
    return in_context({.file = draft.folder.path.string()},
                      [&] { return DcpKeys(files.entries(), draft.options.model); });
  }

  // The model's name of a parameter that the optimizer calls `name`, by a number or with the
  // prefixes of a wrapper.
  std::string renamed(const std::string& name) const {
    const auto found = names_.find(name);
    return found == names_.end() ? name : found->second;
  }

  // Numbers get the names that the groups have beside them, or else those of the run that goes on
  // (OpenOptions::order).
  void name_params(const std::vector<std::vector<std::string>>& params,
                   const std::vector<std::vector<std::string>>& param_names) {
    KeyedMap<std::string, const DcpKeys::Named*> model;
    for (const DcpKeys::Named& each : keys_.model()) {
      model.emplace(without_wrappers(each.name), &each);
    }
    for (const std::vector<std::string>& group : params) {
      for (const std::string& name : group) {
        const auto found = model.find(without_wrappers(name));
        if (found != model.end()) names_.emplace(name, found->second->name);
      }
    }
    if (keys_.optimizer() == nullptr || !keys_.optimizer()->is_numbered()) return;
    const auto shape_of = [&](const std::string& name) -> const Shape* {
      const auto found = model.find(without_wrappers(name));
      return found == model.end() ? nullptr : &found->second->entry.value->tensor->shape;
    };
    KeyedMap<std::string, Shape> state_shapes;
    for (const DcpKeys::Named& state : states_) {
      if (is_of_elements(state)) state_shapes.emplace(state.name, state.entry.value->tensor->shape);
    }
    const auto state_shape = [&](const std::string& number) {
      const auto found = state_shapes.find(number);
      return found == state_shapes.end() ? std::nullopt : std::optional(found->second);
    };
    auto names = names_of_numbers(params, {.groups = param_names}, shape_of, state_shape);
    if (!names) names = names_of_numbers(params, draft_.options.order, shape_of, state_shape);
    if (!names) return;
    for (const auto& [number, name] : *names) {
      const auto found = model.find(without_wrappers(name));
      names_[number] = found == model.end() ? name : found->second->name;
    }
    for (DcpKeys::Named& state : states_) state.name = renamed(state.name);
  }

  void find_trained(const std::vector<std::vector<std::string>>& groups) {
    for (const DcpKeys::Named& state : states_) trained_.insert(state.name);
    for (const auto& group : groups) trained_.insert(group.begin(), group.end());
    KeyedSet<std::string_view> known;
    for (const DcpKeys::Named& each : keys_.model()) known.insert(each.name);
    std::vector<std::string> unknown;
    for (const std::string& name : trained_) {
      if (!known.contains(name)) unknown.push_back(name);
    }
    if (unknown.empty()) return;
    // optimizer.state_dict() as it is.
    numbered_ = std::all_of(trained_.begin(), trained_.end(), is_digits);
    if (numbered_) return trained_.clear();
    throw InconsistentError({.file = draft_.folder.path.string(), .tensor = unknown.front()},
                            "is one of " + counted(unknown.size(), "parameter") +
                                " that the optimizer has and the model lacks:" + listed(unknown));
  }

  // Values that are not tensors are opened one by one, and so are steps.
  static bool is_of_elements(const DcpKeys::Named& state) {
    return state.entry.is_tensor() && state.key != kStepKey;
  }

  void want_states() {
    for (const DcpKeys::Named& state : states_) {
      if (files_.is_left_out(state.entry)) continue;
      if (is_of_elements(state)) {
        tensors_.want(state.entry);
      } else if (state.key != kStepKey && !files_.is_lost(state.entry)) {
        whole_.push_back(&state);
      }
    }
  }

  // The run has made as many steps as the parameter that was stepped most often.
  void open_steps() {
    for (const DcpKeys::Named& state : states_) {
      if (state.key != kStepKey || files_.is_lost(state.entry)) continue;
      if (!files_.is_left_out(state.entry)) steps_.push_back({&state, nullptr});
    }
    std::vector<double> numbers(steps_.size());
    tbb::parallel_for(size_t{0}, steps_.size(), [&](size_t i) {
      Step& step = steps_[i];
      step.archive = std::make_unique<TorchArchive>(files_.open_value(step.state->entry));
      const Where where{.file = draft_.inputs[step.archive->file()].display(),
                        .tensor = step.state->entry.name()};
      in_context(where, [&] {
        const std::optional<double> number = step.archive->scalar(step.archive->root());
        if (!number) throw CorruptError({}, "is not a number");
        numbers[i] = *number;
      });
    });
    constexpr double kMostSteps = 1e15;
    auto& steps = draft_.facts.global_steps;
    for (const double number : numbers) {
      if (!(number >= 0 && number < kMostSteps)) continue;
      steps = std::max(steps.value_or(0), static_cast<int64_t>(number));
    }
  }

  ParamKind kind_of(const DcpKeys::Named& each, DType dtype) const {
    if (trained_.contains(each.name)) return ParamKind::trainable;
    if (!may_be_trained(dtype, each.name)) return ParamKind::buffer;
    return trained_.empty() ? ParamKind::trainable : ParamKind::frozen;
  }

  // Entries at the same places of the files are one tensor.
  std::string places_text(const DcpEntry& entry) const {
    std::string text = to_text(entry.value->tensor->shape);
    for (const DcpChunk& chunk : entry.value->tensor->chunks) {
      if (numel(chunk.sizes) == 0) continue;
      const Extent extent = files_.extent_of(entry, chunk.place);
      text += ";" + to_text(chunk.offsets) + std::to_string(extent.file) + ":" +
              std::to_string(extent.offset);
    }
    return text;
  }

  void add_params() {
    draft_.facts.frozen_known = !trained_.empty();
    KeyedMap<std::string, std::string> owners;
    NamesSize of_aliases;
    size_t told_by_type = 0;
    for (const DcpKeys::Named& each : keys_.model()) {
      if (files_.is_left_out(each.entry)) continue;
      const DcpTensor& tensor = *each.entry.value->tensor;
      Param param{.name = each.name,
                  .kind = kind_of(each, tensor.dtype),
                  .weight = tensors_.whole(each.entry)};
      if (numel(tensor.shape) != 0) {
        const auto [owner, is_new] = owners.emplace(places_text(each.entry), each.name);
        if (!is_new) {
          of_aliases.add(owner->second);
          param.alias_of = owner->second;
        }
      }
      param.requires_grad = param.kind == ParamKind::trainable;
      if (param.kind == ParamKind::frozen) ++told_by_type;
      if (param.requires_grad && size_of(tensor.dtype) < size_of(DType::float32)) {
        draft_.facts.has_masters = false;
      }
      draft_.params.push_back(std::move(param));
    }
    prefer_trained_owners();
    sort_params(draft_.params);
    note_told_by_type(draft_, told_by_type);
  }

  // A tensor may have several names; the optimizer knows one of them.
  void prefer_trained_owners() {
    KeyedMap<std::string, std::string> chosen;
    for (const Param& param : draft_.params) {
      if (!param.alias_of.empty() && trained_.contains(param.name) &&
          !trained_.contains(param.alias_of)) {
        chosen.emplace(param.alias_of, param.name);
      }
    }
    if (chosen.empty()) return;
    for (Param& param : draft_.params) {
      const auto of_owner = chosen.find(param.alias_of.empty() ? param.name : param.alias_of);
      if (of_owner == chosen.end()) continue;
      param.alias_of = of_owner->second == param.name ? "" : of_owner->second;
      param.kind = ParamKind::trainable;
      param.requires_grad = true;
    }
  }

  void add_states() {
    KeyedMap<std::string_view, Param*> params;
    for (Param& param : draft_.params) params.emplace(param.name, &param);
    for (const DcpKeys::Named& state : states_) {
      if (!is_of_elements(state) || files_.is_left_out(state.entry)) continue;
      const auto found = params.find(state.name);
      if (found == params.end()) continue;  // its parameter is left out
      Param& param = *found->second;
      TensorSource value = tensors_.whole(state.entry);
      if (value.shape() == param.weight.shape()) {
        param.states.push_back({state.key, std::move(value)});
      } else if (!files_.is_lost(state.entry)) {
        whole_.push_back(&state);
      }
    }
    for (Step& step : steps_) {
      const auto found = params.find(step.state->name);
      if (found == params.end()) continue;
      found->second->step = {step.archive.get(), step.archive->root()};
      draft_.item_archives.push_back(std::move(step.archive));
    }
    std::map<Param*, std::vector<WholeState>> others;
    for (const DcpKeys::Named* other : whole_) {
      if (!params.contains(other->name)) continue;
      draft_.item_archives.push_back(
          std::make_unique<TorchArchive>(files_.open_value(other->entry)));
      const TorchArchive& archive = *draft_.item_archives.back();
      others[params.at(other->name)].push_back(
          {.key = other->key, .value = {&archive, archive.root()}});
    }
    for (auto& [param, some] : others) param->others = std::move(some);
    for (Param& param : draft_.params) {
      std::stable_sort(param.states.begin(), param.states.end(), is_before_in_adam);
    }
  }

  void note_left_out() {
    if (keys_.of_others() > 0) {
      draft_.notes.push_back(counted(keys_.of_others(), "tensor") +
                             (keys_.of_others() == 1 ? " is" : " are") +
                             " of different models than '" + draft_.options.model + "'");
    }
    if (keys_.left_out().empty()) return;
    std::vector<std::string> names;
    for (const DcpEntry& entry : keys_.left_out()) names.push_back(entry.name());
    draft_.notes.push_back(counted(names.size(), "tensor") + " beside the model " +
                           (names.size() == 1 ? "is" : "are") + " left out: " + some_of(names));
  }

  void note_unsupported() {
    for (const auto& [why, names] : files_.unsupported()) {
      draft_.valueless.insert(draft_.valueless.end(), names.begin(), names.end());
      draft_.notes.push_back(unsupported_text(why, names));
    }
  }

  CheckpointDraft& draft_;
  DcpFiles files_;
  DcpKeys keys_;
  std::vector<DcpKeys::Named> states_;             // of the optimizer, as the model calls them
  KeyedMap<std::string, std::string> names_ = {};  // the model's, by the optimizer's
  DcpTensors tensors_;
  std::set<std::string> trained_;
  bool numbered_ = false;  // parameters have numbers instead of names
  struct Step {
    const DcpKeys::Named* state;
    std::unique_ptr<TorchArchive> archive;
  };
  std::vector<Step> steps_;
  std::vector<const DcpKeys::Named*> whole_;  // other states that are not one value an element
};

bool probe_dcp(CheckpointDraft& draft) {
  return !draft.folder.dcp_metadata.empty();
}

void read_dcp(CheckpointDraft& draft) {
  refuse_foreign_options(draft, "of torch.distributed.checkpoint");
  DcpReader(draft).read();
}

}  // namespace

const Layout kDcp{"dcp", probe_dcp, read_dcp, true};

}  // namespace dsckpt
