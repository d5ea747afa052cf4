// Weights as a checkpoint, in three forms. The values of files of weights may stand alone. They may
// have the names, the order and everything else of a checkpoint of the run that is to start from
// them. Or they are the values of a checkpoint whose training goes on.

#include <algorithm>
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
#include "checkpoint/hub_weights.h"
#include "checkpoint/layout.h"
#include "checkpoint/weights.h"
#include "dsckpt/error.h"

namespace dsckpt {
namespace {

constexpr const char* kTag = "global_step0";

class WeightsReader {
 public:
  WeightsReader(CheckpointDraft& draft, std::span<const WeightsTensor> weights, std::string where,
                const WeightNames& names)
      : draft_(draft), weights_(weights), where_(std::move(where)), names_(names) {
    for (const WeightsTensor& tensor : weights) {
      const std::string name = engine_name(names_, tensor.name);
      if (!by_name_.emplace(name, &tensor).second) {
        throw InconsistentError({.file = where_, .tensor = name},
                                "would be the name of two tensors");
      }
    }
  }

  void read_alone() {
    CheckpointFacts& facts = draft_.facts;
    facts.layout = "weights";
    facts.tag = kTag;
    facts.global_steps = 0;
    facts.run = RunKind::none;
    facts.values = ValuesFrom::start;
    facts.frozen_known = false;
    draft_.params.reserve(weights_.size());
    for (const WeightsTensor& tensor : weights_) {
      const bool trained = can_be_trained(tensor.value.dtype());
      if (trained && size_of(tensor.value.dtype()) < 4) facts.has_masters = false;
      Param param{.name = engine_name(names_, tensor.name),
                  .kind = trained ? ParamKind::trainable : ParamKind::buffer,
                  .weight = tensor.value};
      if (!tensor.alias_of.empty()) param.alias_of = engine_name(names_, tensor.alias_of);
      param.requires_grad = trained;
      draft_.params.push_back(std::move(param));
    }
  }

  void read_like(const Checkpoint& like) {
    if (like.facts().states == StatesTold::stripped) {
      throw UnsupportedError({.file = like.tag_folder().string()},
                             "was stripped to its weights by ckpt-pack strip: it does not tell how "
                             "a run of it starts");
    }
    draft_.facts = like.facts();
    draft_.run_config = like.run_config();
    draft_.facts.tag = kTag;
    draft_.facts.global_steps = 0;
    draft_.facts.values = ValuesFrom::start;
    draft_.facts.states = StatesTold::yes;
    draft_.groups = like.groups();
    draft_.wrapper_state = like.wrapper_state();
    take_values(like);
    for (const Param& param : like.params()) add_at_start(param);
    note_kept();
  }

  void read_into(const Checkpoint& base) {
    goes_on_ = true;
    take_values(base);
    for (const Param& param : base.params()) add_going_on(param);
    note_kept();
    note_widened(base);
  }

 private:
  void take_values(const Checkpoint& like) {
    find_aliases(like);
    for (const Param& param : like.params()) {
      if (param.alias_of.empty()) take_value(param, like);
    }
    check_names(like);
  }

  static bool can_be_trained(DType dtype) {
    return is_floating_point(dtype) && can_convert(dtype, DType::float32);
  }

  void find_aliases(const Checkpoint& like) {
    for (const Param& param : like.params()) {
      if (!param.alias_of.empty()) aliases_[param.alias_of].push_back(param.name);
    }
  }

  // The value of a parameter and of all names tied to it, which have to be equal.
  void take_value(const Param& param, const Checkpoint& like) {
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
      check_fits(name, tensor.value, param, like);
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

  void check_fits(const std::string& name, const TensorSource& value, const Param& param,
                  const Checkpoint& like) const {
    const Where where{.file = where_, .tensor = name};
    const std::string there = ", in " + like.tag_folder().string() + " ";
    const Shape wanted = without_padding(param, param.weight).shape();
    if (value.shape() != wanted) {
      throw InconsistentError(where,
                              "has shape " + to_text(value.shape()) + there + to_text(wanted));
    }
    const DType from = value.dtype();
    const DType to = param.weight.dtype();
    // Masters would be rounded, and 16-bit copies rounded from these once more.
    if (goes_on_ && from == DType::float64 && to != from) {
      throw UnsupportedError(where, "is float64" + there + std::string(torch_name(to)) +
                                        ": it would be rounded more than once")
          .with_hint("torch: save it with .float()");
    }
    if (from == to || (can_be_trained(from) && can_be_trained(to) && can_convert(from, to))) return;
    throw InconsistentError(
        where, "is of type " + std::string(torch_name(from)) + there + std::string(torch_name(to)));
  }

  void check_names(const Checkpoint& like) const {
    std::vector<std::string> extra;
    for (const auto& [name, tensor] : by_name_) {
      if (!used_.contains(name)) extra.push_back(name);
    }
    if (missing_.empty() && extra.empty()) return;
    const std::string there = like.tag_folder().string();
    std::string text;
    if (!missing_.empty()) {
      text = "lacks " + counted(missing_.size(), "parameter") + " of " + there + ":" +
             listed(missing_);
    }
    if (!extra.empty()) {
      text += std::string(text.empty() ? "" : "\nand ") + "has " + counted(extra.size(), "tensor") +
              " that " + there + " does not have:" + listed(extra);
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

  // The tensor in the files; nullptr for a buffer that they lack.
  const TensorSource* given(const Param& param) const {
    const auto found = values_.find(param.alias_of.empty() ? param.name : param.alias_of);
    return found == values_.end() ? nullptr : &found->second;
  }

  void add_at_start(const Param& param) {
    const TensorSource* value = given(param);
    draft_.params.push_back({.name = param.name,
                             .kind = param.kind,
                             .weight = value == nullptr ? param.weight : *value,
                             .alias_of = param.alias_of,
                             .form = param.form,
                             .cut = param.cut,
                             .requires_grad = param.requires_grad,
                             .given = value != nullptr});
  }

  void add_going_on(Param param) {
    if (const TensorSource* value = given(param)) {
      param.weight = *value;
      param.given = true;
    }
    draft_.params.push_back(std::move(param));
  }

  void note_kept() {
    if (kept_.empty()) return;
    draft_.notes.push_back("buffers that are not in the weights are those of the checkpoint:" +
                           listed(kept_));
  }

  void note_widened(const Checkpoint& base) {
    for (const auto& [dtype, count] : given_as_) {
      if (size_of(dtype) >= size_of(DType::float32)) continue;
      draft_.notes.push_back("the weights are " + std::string(torch_name(dtype)) + " of " +
                             counted(count, "trained parameter") + " of " +
                             base.tag_folder().string() +
                             ": the masters get these numbers, upcast; float32 weights, as "
                             "zero-to-fp32 writes them without --dtype, lose nothing");
    }
  }

  CheckpointDraft& draft_;
  std::span<const WeightsTensor> weights_;
  const std::string where_;  // what the files lie in, for messages
  bool goes_on_ = false;     // the training of the checkpoint that gets the weights
  const WeightNames& names_;
  std::map<std::string, const WeightsTensor*> by_name_;      // by the engine's names
  KeyedMap<std::string, std::vector<std::string>> aliases_;  // by owner
  KeyedMap<std::string, TensorSource> values_;               // by owner
  std::map<DType, size_t> given_as_;  // trained parameters by their type in the files
  KeyedSet<std::string> used_;
  std::vector<std::string> missing_;
  std::vector<std::string> kept_;
};

}  // namespace

void read_weights(CheckpointDraft& draft, std::span<const WeightsTensor> weights,
                  const WeightNames& names, const Checkpoint* like) {
  WeightsReader reader(draft, weights, draft.folder.path.string(), names);
  if (like != nullptr) {
    reader.read_like(*like);
  } else {
    reader.read_alone();
  }
}

void read_other_weights(CheckpointDraft& draft, std::span<const WeightsTensor> weights,
                        const std::string& where, const WeightNames& names,
                        const Checkpoint& base) {
  WeightsReader(draft, weights, where, names).read_into(base);
}

}  // namespace dsckpt
