// Weights as a checkpoint, in three forms. The values of files of weights may stand alone. They may
// have the names, the order and everything else of a checkpoint of the run that is to start from
// them. Or they are the values of a checkpoint whose training goes on.

#include <algorithm>
#include <filesystem>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/kernels.h"
#include "base/keyed_hash.h"
#include "base/text.h"
#include "checkpoint/other_values.h"
#include "checkpoint/renamed.h"
#include "dsckpt/error.h"

namespace dsckpt {
namespace fs = std::filesystem;
namespace {

constexpr const char* kTag = "global_step0";

bool can_be_trained(DType dtype) {
  return is_floating_point(dtype) && can_convert(dtype, DType::float32);
}

// By the engine's names; no two of them may be equal.
std::map<std::string, const WeightsTensor*> by_name(std::span<const WeightsTensor> tensors,
                                                    const std::string& where) {
  std::map<std::string, const WeightsTensor*> all;
  for (const WeightsTensor& tensor : tensors) {
    if (all.emplace(tensor.name, &tensor).second) continue;
    throw InconsistentError({.file = where, .tensor = tensor.name},
                            "would be the name of two tensors");
  }
  return all;
}

class WeightsGiver {
 public:
  WeightsGiver(CheckpointDraft& draft, const Checkpoint& base, const GivenWeights& given)
      : draft_(draft),
        base_(base),
        there_(base.tag_folder().string()),
        where_(given.where),
        of_a_start_(given.of_a_start),
        by_name_(by_name(given.tensors, given.where)) {}

  void give() {
    for (const Param& param : base_.params()) {
      if (!param.alias_of.empty()) aliases_[param.alias_of].push_back(param.name);
    }
    for (const Param& param : base_.params()) {
      if (param.alias_of.empty()) take_value(param);
    }
    check_names();
    for (const Param& param : base_.params()) add(param);
    note_kept();
    if (!of_a_start_) note_widened();
  }

 private:
  // The value of a parameter and of all names tied to it, which have to be equal.
  void take_value(const Param& param) {
    std::vector<std::string> names{param.name};
    const auto tied = aliases_.find(param.name);
    if (tied != aliases_.end()) {
      names.insert(names.end(), tied->second.begin(), tied->second.end());
    }
    std::vector<TensorSource> copies;
    KeyedSet<std::string> stored;  // each storage once
    for (const std::string& name : names) {
      const auto found = by_name_.find(name);
      if (found == by_name_.end()) continue;
      used_.insert(name);
      const WeightsTensor& tensor = *found->second;
      if (!stored.insert(tensor.alias_of.empty() ? tensor.name : tensor.alias_of).second) continue;
      check_fits(name, tensor.value, param);
      copies.push_back(tensor.value);
    }
    if (copies.empty()) {
      // Files of weights often lack tensors that the model computes itself.
      if (param.kind == ParamKind::buffer) {
        kept_.push_back(param.name);
      } else {
        missing_.push_back(param.name);
      }
      return;
    }
    TensorSource value = in_context({.file = where_, .tensor = param.name}, [&] {
      return TensorSource::same(std::move(copies), "copies of the tied '" + param.name + "'");
    });
    if (is_trained(param)) ++given_as_[value.dtype()];
    value = value.to(param.weight.dtype());
    values_.emplace(param.name, padded(param, std::move(value)));
  }

  // Files of weights have a vocabulary without the rows that only fill it up; these stay.
  static TensorSource padded(const Param& param, TensorSource value) {
    const Shape& whole = param.weight.shape();
    if (value.shape() == whole) return value;
    const int64_t rows = value.shape().front();
    return TensorSource::cat(0, {value, param.weight.narrow(0, rows, whole.front() - rows)});
  }

  void check_fits(const std::string& name, const TensorSource& value, const Param& param) const {
    const Where where{.file = where_, .tensor = name};
    const std::string there = ", in " + there_ + " ";
    const Shape wanted = without_padding(param, param.weight).shape();
    if (value.shape() != wanted) {
      throw InconsistentError(where,
                              "has shape " + to_text(value.shape()) + there + to_text(wanted));
    }
    const DType from = value.dtype();
    const DType to = param.weight.dtype();
    // Masters would be rounded, and 16-bit copies rounded from these once more.
    if (!of_a_start_ && from == DType::float64 && to != from) {
      throw UnsupportedError(where, "is float64" + there + std::string(torch_name(to)) +
                                        ": it would be rounded more than once")
          .with_hint("torch: save it with .float()");
    }
    if (from == to || (can_be_trained(from) && can_be_trained(to) && can_convert(from, to))) return;
    throw InconsistentError(
        where, "is of type " + std::string(torch_name(from)) + there + std::string(torch_name(to)));
  }

  void check_names() const {
    std::vector<std::string> extra;
    for (const auto& [name, tensor] : by_name_) {
      if (!used_.contains(name)) extra.push_back(name);
    }
    if (missing_.empty() && extra.empty()) return;
    std::string text;
    if (!missing_.empty()) {
      text = "lacks " + counted(missing_.size(), "parameter") + " of " + there_ + ":" +
             listed(missing_);
    }
    if (!extra.empty()) {
      text += std::string(text.empty() ? "" : "\nand ") + "has " + counted(extra.size(), "tensor") +
              " that " + there_ + " does not have:" + listed(extra);
    }
    throw InconsistentError(
        {.file = where_, .tensor = missing_.empty() ? extra.front() : missing_.front()}, text)
        .with_hint(hint(extra));
  }

  // The part of `name` after the dots; a prefix of more parts than these is none.
  static std::vector<std::string_view> ends_of(std::string_view name) {
    constexpr size_t kMostEnds = 64;
    std::vector<std::string_view> ends;
    for (size_t dot = name.find('.'); dot != name.npos && ends.size() < kMostEnds;
         dot = name.find('.', dot + 1)) {
      ends.push_back(name.substr(dot + 1));
    }
    return ends;
  }

  // A prefix that would make of one of the tensors too many one of those that are missing.
  std::string hint(const std::vector<std::string>& extra) const {
    // The first of `extra` by its name, and by what is left of it behind each of its dots.
    using Firsts = KeyedMap<std::string_view, size_t>;
    Firsts by_name;
    Firsts by_end;
    for (size_t i = 0; i < extra.size(); ++i) {
      by_name.emplace(extra[i], i);
      for (const std::string_view end : ends_of(extra[i])) by_end.emplace(end, i);
    }
    for (const std::string& wanted : missing_) {
      size_t first = extra.size();
      const auto find = [&](const Firsts& firsts, std::string_view name) {
        const auto found = firsts.find(name);
        if (found != firsts.end()) first = std::min(first, found->second);
      };
      find(by_end, wanted);
      for (const std::string_view end : ends_of(wanted)) find(by_name, end);
      if (first == extra.size()) continue;
      const std::string& name = extra[first];
      if (wanted.size() > name.size()) {
        return "--add-prefix " + wanted.substr(0, wanted.size() - name.size()) +
               " would make them fit";
      }
      return "--strip-prefix " + name.substr(0, name.size() - wanted.size()) +
             " would make them fit";
    }
    return "zero-to-fp32 --include and --exclude write a part of the weights";
  }

  void add(Param param) {
    const auto found = values_.find(param.alias_of.empty() ? param.name : param.alias_of);
    if (found != values_.end()) {
      param.weight = found->second;
      param.given = true;
    }
    if (of_a_start_) {
      param.states.clear();
      param.step = {};
      param.others = {};
    }
    draft_.params.push_back(std::move(param));
  }

  void note_kept() {
    if (kept_.empty()) return;
    draft_.notes.push_back("buffers that are not in the weights are those of the checkpoint:" +
                           listed(kept_));
  }

  void note_widened() {
    for (const auto& [dtype, count] : given_as_) {
      if (size_of(dtype) >= size_of(DType::float32)) continue;
      draft_.notes.push_back("the weights are " + std::string(torch_name(dtype)) + " of " +
                             counted(count, "trained parameter") + " of " + there_ +
                             ": the masters get these numbers, upcast; float32 weights, as "
                             "zero-to-fp32 writes them without --dtype, lose nothing");
    }
  }

  CheckpointDraft& draft_;
  const Checkpoint& base_;
  const std::string there_;
  const std::string& where_;
  const bool of_a_start_;
  const std::map<std::string, const WeightsTensor*> by_name_;
  KeyedMap<std::string, std::vector<std::string>> aliases_;  // by owner
  KeyedMap<std::string, TensorSource> values_;               // by owner
  std::map<DType, size_t> given_as_;  // trained parameters by their type in the files
  KeyedSet<std::string> used_;
  std::vector<std::string> missing_;
  std::vector<std::string> kept_;
};

Weights open_weights(InputFiles& inputs, const fs::path& path, const WeightNames& names,
                     std::vector<std::string>& notes) {
  if (!names.choice.empty()) notes.push_back(names.choice);
  return Weights::open(inputs, path,
                       {.of_model = true,
                        .model = names.model,
                        .allow_missing = names.allow_missing,
                        .folders = names.folders});
}

// Those of `weights` by the engine's names; `base` is what gets them, if anything does.
ModuleTensors engine_tensors(const Weights& weights, const fs::path& path, const WeightNames& names,
                             const Checkpoint* base, std::vector<std::string>& notes) {
  if (names.rules != nullptr) return {renamed_weights(weights, names, notes)};
  ModuleTensors made = as_module_has(weights, path, names, base, notes);
  for (WeightsTensor& tensor : made.tensors) {
    tensor.name = engine_name(names, tensor.name);
    if (!tensor.alias_of.empty()) tensor.alias_of = engine_name(names, tensor.alias_of);
  }
  return made;
}

// For those who need every value.
void refuse_unread(const fs::path& path, const Weights& weights) {
  if (weights.unread().empty()) return;
  const OpaqueTensor& first = weights.unread().front();
  throw UnsupportedError({.file = path.string(), .tensor = printable(first.path)},
                         "is a tensor of an unsupported kind (" + first.kind + ")");
}

void take_files(CheckpointDraft& draft, Weights weights) {
  for (const std::string& file : weights.missing()) {
    draft.lost_files.push_back({{.kind = ShardName::Kind::model_states}, file, "is missing"});
  }
  draft.notes.insert(draft.notes.end(), weights.notes().begin(), weights.notes().end());
  draft.weights = std::move(weights).take_files();
}

void refuse_stripped(const Checkpoint& base, const char* why) {
  if (base.facts().states != StatesTold::stripped) return;
  throw UnsupportedError({.file = base.tag_folder().string()},
                         std::string("was stripped to its weights by ckpt-pack strip: ") + why);
}

}  // namespace

void give_weights(CheckpointDraft& draft, const Checkpoint& base, const GivenWeights& given) {
  WeightsGiver(draft, base, given).give();
}

void refuse_values_into(const Checkpoint& base) {
  refuse_stripped(base, "there is no training to continue");
  if (base.facts().has_masters) return;
  throw UnsupportedError({.file = base.tag_folder().string()},
                         "has no fp32 masters, from which training would continue");
}

Checkpoint weights_alone(InputFiles& inputs, const fs::path& path, const WeightNames& names) {
  CheckpointDraft draft{.inputs = inputs};
  Weights weights = open_weights(inputs, path, names, draft.notes);
  draft.folder.path = path;
  draft.folder.folders = names.folders;
  draft.facts = {.layout = "weights",
                 .run = RunKind::none,
                 .values = ValuesFrom::start,
                 .global_steps = 0,
                 .tag = kTag,
                 .frozen_known = false};
  const ModuleTensors made = engine_tensors(weights, path, names, nullptr, draft.notes);
  draft.facts.from_hub = made.from_hub;
  by_name(made.tensors, path.string());
  for (const WeightsTensor& tensor : made.tensors) {
    const bool trained = can_be_trained(tensor.value.dtype());
    if (trained && size_of(tensor.value.dtype()) < 4) draft.facts.has_masters = false;
    draft.params.push_back({.name = tensor.name,
                            .kind = trained ? ParamKind::trainable : ParamKind::buffer,
                            .weight = tensor.value,
                            .alias_of = tensor.alias_of,
                            .requires_grad = trained});
  }
  for (const OpaqueTensor& tensor : weights.unread()) draft.valueless.push_back(tensor.path);
  take_files(draft, std::move(weights));
  return Checkpoint(std::move(draft));
}

Checkpoint started_from_weights(std::shared_ptr<const Checkpoint> base, const fs::path& path,
                                const WeightNames& names) {
  const CheckpointDraft of_base = base->draft();
  std::vector<std::string> notes;
  Weights weights = open_weights(of_base.inputs, path, names, notes);
  refuse_stripped(*base, "it does not tell how a run of it starts");
  CheckpointDraft draft{.inputs = of_base.inputs,
                        .facts = of_base.facts,
                        .run_config = of_base.run_config,
                        .groups = of_base.groups,
                        .wrapper_state = of_base.wrapper_state,
                        .notes = std::move(notes),
                        .files = {.model = of_base.files.model, .optim = of_base.files.optim}};
  draft.folder.path = path;
  draft.folder.folders = names.folders;
  draft.facts.values = ValuesFrom::start;
  draft.facts.states = StatesTold::yes;
  draft.facts.global_steps = 0;
  draft.facts.tag = kTag;
  const std::vector<WeightsTensor> tensors =
      engine_tensors(weights, path, names, base.get(), draft.notes).tensors;
  give_weights(draft, *base, {tensors, path.string(), true});
  refuse_unread(path, weights);
  take_files(draft, std::move(weights));
  draft.run = std::move(base);
  return Checkpoint(std::move(draft));
}

Checkpoint with_weights(std::shared_ptr<const Checkpoint> base, const fs::path& path,
                        const WeightNames& names) {
  refuse_values_into(*base);
  CheckpointDraft draft = base->draft();
  Weights weights = open_weights(draft.inputs, path, names, draft.notes);
  refuse_unread(path, weights);
  if (!draft.facts.has_given_states()) draft.facts.values = ValuesFrom::weights;
  const std::vector<WeightsTensor> tensors =
      engine_tensors(weights, path, names, base.get(), draft.notes).tensors;
  give_weights(draft, *base, {tensors, path.string()});
  take_files(draft, std::move(weights));
  draft.run = std::move(base);
  return Checkpoint(std::move(draft));
}

}  // namespace dsckpt
