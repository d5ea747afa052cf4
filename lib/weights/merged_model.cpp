#include "weights/merged_model.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <optional>
#include <string_view>

#include "base/keyed_hash.h"
#include "base/text.h"
#include "dsckpt/error.h"
#include "job/cast.h"

namespace dsckpt {
namespace {

// Returns whether the tensor is of a copy that peft made of a module. An adapter also has original
// embeddings: grown ones, and those with LoRA on them.
bool is_copy_of_module(const std::string& name, const WholeTensor& whole,
                       const LoraSettings& settings) {
  const std::string& stored = whole.tensor->tensor.name;
  if (stored.find(".base_layer.") != stored.npos) return false;
  if (stored.find(".modules_to_save.") != stored.npos) return true;
  if (!whole.of_adapter) return false;
  return settings.file().empty() || settings.saves_module_of(name);
}

}  // namespace

MergedModel::MergedModel(const BaseTensors& base, std::string architecture,
                         const TrainedParts& parts, const LoraSettings& settings,
                         const MergedTypes& types, std::vector<std::string>& notes)
    : base_(base),
      architecture_(std::move(architecture)),
      settings_(settings),
      types_(types),
      notes_(notes) {
  for (const Tensor& tensor : base.tensors) {
    if (!tensor.alias_of.empty()) aliases_[tensor.alias_of].push_back(&tensor);
  }
  for (const auto& each : parts.whole) {
    in_context({.tensor = each.second.tensor->tensor.name},
               [&] { replace(each.first, each.second); });
  }
  for (const auto& each : originals_) {
    in_context({.tensor = each.second->tensor.name},
               [&] { settle_original(each.first, *each.second); });
  }
}

// Only a tensor that the adapter does not hold may be left out.
void MergedModel::refuse_place(const std::string& name, const WholeTensor& whole) const {
  if (whole.of_adapter) base_.refuse(name);
  throw InconsistentError(
      {.tensor = whole.tensor->tensor.name},
      "was trained, but is neither in the adapter nor in the base, " + base_.display)
      .with_hint("--exclude leaves it out");
}

void MergedModel::replace(const std::string& name, const WholeTensor& whole) {
  const ChosenTensor& trained = *whole.tensor;
  const bool is_copy = is_copy_of_module(name, whole, settings_);
  const Tensor* tensor = base_.find(name);
  if (tensor == nullptr) {
    // Another name of a tensor that replaces its owner.
    if (base_.find(name_in_base(trained.param->alias_of)) != nullptr) return;
    if (is_tied_in_config(name, trained)) {
      if (!is_copy) originals_.emplace_back(name, &trained);
      if (!is_copy || settings_.ensures_tying()) return;
      // A trained copy of the embeddings.
      changes_.untied = true;
      added_.emplace_back(name, &trained);
      return;
    }
    refuse_place(name, whole);
  }
  const bool is_shared = name == "shared.weight" || name.ends_with(".shared.weight");
  if (is_shared && is_copy && !aliases_.contains(name) && !settings_.ensures_tying()) {
    throw UnsupportedError({.tensor = trained.tensor.name},
                           "is a trained copy of embeddings that encoder, decoder and head share, "
                           "and the base has them once")
        .with_hint("an untied base takes it");
  }
  const Shape& shape = trained.tensor.source.shape();
  const Shape wanted = without_padding(tensor->param, tensor->param.weight).shape();
  const bool grew = shape.size() == 2 && wanted.size() == 2 && shape[1] == wanted[1] &&
                    shape[0] > wanted[0] && is_embedding(name);
  if (grew) {
    changes_.vocabulary = ModelChanges::Vocabulary{wanted[0], shape[0]};
  } else if (shape != wanted) {
    throw InconsistentError({.tensor = trained.tensor.name},
                            "has shape " + to_text(shape) + ", in the base " + to_text(wanted));
  }
  replaced_.emplace(name, &trained);
  if (is_copy) copies_.insert(name);
  if (!is_copy && partner_of(name) != nullptr) originals_.emplace_back(name, &trained);
  if (is_copy && is_embedding(name) && !is_output_embedding(name)) replaced_input_ = tensor;
}

// Returns the tensor that the base ties to this one; nullptr if there is none.
const MergedModel::Tensor* MergedModel::partner_of(const std::string& name) const {
  if (const Tensor* tensor = base_.find(name)) {
    if (!tensor->alias_of.empty()) return base_.find(tensor->alias_of);
    const auto tied = aliases_.find(name);
    return tied == aliases_.end() ? nullptr : tied->second.front();
  }
  const auto embedding =
      std::find_if(base_.tensors.begin(), base_.tensors.end(),
                   [](const Tensor& tensor) { return is_embedding(tensor.name); });
  return embedding == base_.tensors.end() ? nullptr : &*embedding;
}

// Decides on a tensor that the base ties to another one, unless it is a copy of a module. If both
// were saved, they are equal, or the run did not tie them, and the merge is refused. Output
// embeddings alone were not tied in the run, and the original beside a copy no longer is.
void MergedModel::settle_original(const std::string& name, const ChosenTensor& trained) {
  const Tensor& partner = *partner_of(name);
  const auto other = replaced_.find(partner.name);
  const bool is_of_copy = copies_.contains(partner.name);
  if (is_of_copy && settings_.ensures_tying()) return;
  if (other == replaced_.end() || is_of_copy) {
    if (!is_output_embedding(name) && !is_of_copy) {
      if (base_.find(name)->alias_of == partner.name) replaced_.emplace(partner.name, &trained);
      return;
    }
    if (settings_.ensures_tying()) {
      throw UnsupportedError(
          {}, "was trained alone, and the adapter keeps it tied to '" + partner.name + "'");
    }
    changes_.untied = true;
    if (base_.find(name) == nullptr) {
      added_.emplace_back(name, &trained);
    } else {
      copies_.insert(name);
    }
    return;
  }
  const auto owner = [](const Param& param) {
    return param.alias_of.empty() ? param.name : param.alias_of;
  };
  const ChosenTensor& kept = *other->second;
  if (owner(*kept.param) == owner(*trained.param)) return;
  const TensorSource& one = kept.tensor.source;
  const TensorSource& two = trained.tensor.source;
  const std::string what =
      "'" + kept.tensor.name + "' and '" + trained.tensor.name + "', which are tied in the base";
  if (one.shape() != two.shape() || one.dtype() != two.dtype()) {
    throw InconsistentError({}, what + ", are not the same");
  }
  Param param = *kept.param;
  param.form = {};
  param.weight = TensorSource::same({one, two}, what);
  ChosenTensor& compared = compared_.emplace_back(kept);
  compared.tensor.source = param.weight;
  compared.made = std::make_shared<const Param>(std::move(param));
  compared.param = compared.made.get();
  other->second = &compared;
}

// Returns whether the base is of a class with output embeddings.
bool MergedModel::has_head() const {
  constexpr std::array<std::string_view, 3> kWithHead{"ForCausalLM", "LMHeadModel",
                                                      "ForConditionalGeneration"};
  return std::any_of(kWithHead.begin(), kWithHead.end(),
                     [&](std::string_view end) { return architecture_.ends_with(end); });
}

void MergedModel::note_tied(const Tensor& embedding) {
  if (base_.has_output_embedding() || !has_head() || !is_embedding(embedding.name)) return;
  notes_.push_back("output embeddings that are tied to '" + embedding.name +
                   "' change with it, as in peft's merge_and_unload; the model that was trained "
                   "had them unchanged");
}

// Adds the output embeddings that only the base's configuration ties to input embeddings of which
// a copy was trained: they keep the original ones.
void MergedModel::add_original(std::vector<OutputTensor>& outputs) {
  if (replaced_input_ == nullptr || settings_.ensures_tying()) return;
  const bool is_there = std::any_of(outputs.begin(), outputs.end(), [](const OutputTensor& each) {
    return is_output_embedding(each.name);
  });
  if (is_there) return;
  if (architecture_.empty()) {
    notes_.push_back("'" + replaced_input_->name +
                     "' is a trained copy; a model that ties its output embeddings to it needs "
                     "the original as lm_head.weight, and only a config.json with architectures "
                     "tells (--hf-config DIR)");
  }
  if (!has_head()) return;
  outputs.push_back(
      {"lm_head.weight", cast(replaced_input_->param, types_.of(*replaced_input_), notes_), {}});
  changes_.untied = true;
}

// Returns whether only the base's configuration ties this tensor to the input embeddings, whose
// values then stand under their own name alone.
bool MergedModel::is_tied_in_config(const std::string& name, const ChosenTensor& trained) const {
  const Shape& shape = trained.tensor.source.shape();
  if (name != "lm_head.weight" && !name.ends_with(".lm_head.weight")) return false;
  if (base_.has_output_embedding()) return false;
  return std::any_of(base_.tensors.begin(), base_.tensors.end(), [&](const Tensor& tensor) {
    return is_embedding(tensor.name) && shape.size() == 2 &&
           tensor.param.weight.shape().size() == 2 && tensor.param.weight.shape()[1] == shape[1];
  });
}

TensorSource MergedModel::values(const Tensor& tensor) const {
  const auto found = replaced_.find(tensor.name);
  if (found != replaced_.end()) return found->second->tensor.source;
  return without_padding(tensor.param, tensor.param.weight);
}

void MergedModel::change(const Tensor& tensor, TensorSource merged) {
  if (!tensor.alias_of.empty()) {
    throw UnsupportedError({}, "is on '" + tensor.name + "', which is tied to '" + tensor.alias_of +
                                   "': merged, both would change")
        .with_hint("an untied base takes it");
  }
  if (const auto tied = aliases_.find(tensor.name); tied != aliases_.end()) {
    for (const Tensor* alias : tied->second) {
      if (replaced_.contains(alias->name)) continue;
      notes_.push_back("'" + alias->name + "' is tied to '" + tensor.name +
                       "' and changes with it, as in peft's merge_and_unload");
    }
  }
  if (!merged_.emplace(tensor.name, std::move(merged)).second) {
    throw UnsupportedError({}, "is on '" + tensor.name + "', which the adapter changes twice");
  }
}

// Follows alias_of, which the names in the engine have. A trained copy is no longer tied, and
// neither is its original.
std::string MergedModel::owner_of(const Tensor& tensor) const {
  const std::string& owner = tensor.alias_of.empty() ? tensor.name : tensor.alias_of;
  if (settings_.ensures_tying()) return owner;
  if (copies_.contains(tensor.name)) {
    const Param& trained = *replaced_.at(tensor.name)->param;
    return "trained " + (trained.alias_of.empty() ? trained.name : trained.alias_of);
  }
  return owner;
}

std::vector<OutputTensor> MergedModel::outputs() {
  std::vector<OutputTensor> outputs;
  KeyedMap<std::string, std::pair<DType, std::string>> written;  // by owner
  for (const Tensor& tensor : base_.tensors) {
    const std::string owner = owner_of(tensor);
    OutputTensor output{tensor.name, value_of(tensor, owner), {}};
    const auto [first, is_first] =
        written.emplace(owner, std::pair(output.source.dtype(), output.name));
    if (!is_first && first->second.first == output.source.dtype()) {
      output.alias_of = first->second.second;
    }
    outputs.push_back(std::move(output));
    if (!tensor.alias_of.empty()) {
      const Tensor* of = base_.find(tensor.alias_of);
      if (of != nullptr && owner_of(*of) != owner) changes_.untied = true;
    }
  }
  for (const auto& [name, trained] : added_) {
    const auto tied = std::find_if(base_.tensors.begin(), base_.tensors.end(),
                                   [](const Tensor& each) { return is_embedding(each.name); });
    const DType type = types_.of(name, tied->param.weight.dtype());
    outputs.push_back({name, cast(*trained->param, type, notes_), {}});
  }
  add_original(outputs);
  check_vocabulary(outputs);
  return outputs;
}

// Checks that all embeddings have grown if one has.
void MergedModel::check_vocabulary(const std::vector<OutputTensor>& outputs) const {
  if (!changes_.vocabulary) return;
  for (const OutputTensor& output : outputs) {
    const Shape& shape = output.source.shape();
    if (!is_embedding(output.name) || shape.empty() || shape[0] == changes_.vocabulary->after) {
      continue;
    }
    throw InconsistentError({.tensor = output.name},
                            "has " + counted(shape[0], "row") +
                                ", other embeddings have grown to " +
                                std::to_string(changes_.vocabulary->after));
  }
}

TensorSource MergedModel::value_of(const Tensor& tensor, const std::string& owner) {
  const Tensor* of = base_.find(owner);
  if (of == nullptr) of = &tensor;
  Param param = of->param;
  param.name = tensor.name;
  if (const auto merged = merged_.find(of->name); merged != merged_.end()) {
    return merged->second.to(types_.of(tensor));
  }
  // A tensor that was tied to one of which a copy was trained keeps the original.
  const bool takes_trained =
      of == &tensor || settings_.ensures_tying() || !copies_.contains(of->name);
  const auto found = replaced_.find(of->name);
  if (takes_trained && found != replaced_.end()) {
    param = *found->second->param;
  }
  return cast(
      param,
      is_floating_point(of->param.weight.dtype()) ? std::optional(types_.of(tensor)) : std::nullopt,
      notes_);
}

}  // namespace dsckpt
