#include "checkpoint/changed_set.h"

#include <algorithm>
#include <array>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/kernels.h"
#include "base/keyed_hash.h"
#include "base/patterns.h"
#include "base/text.h"
#include "checkpoint/experts.h"
#include "checkpoint/group_choice.h"
#include "checkpoint/layout.h"
#include "checkpoint/model_order.h"
#include "checkpoint/module_entries.h"
#include "checkpoint/regrid.h"
#include "checkpoint/state_dicts.h"
#include "checkpoint/vocab_rows.h"
#include "checkpoint/weights.h"
#include "deepspeed/keys.h"
#include "dsckpt/error.h"
#include "format/meta_tensor.h"

namespace dsckpt {
namespace {

enum class Fate : uint8_t { kept, unfrozen, frozen, dropped };

struct FateOption {
  Fate fate;
  const char* name;
  std::vector<std::string> SetChange::*patterns;
  const char* candidates;  // the parameters that it is for
  const char* effect;      // what becomes of them
};

constexpr std::array kFateOptions{
    FateOption{Fate::unfrozen, "--unfreeze", &SetChange::unfreeze, "frozen parameter",
               "trained; masters are the values in float32, and states begin empty"},
    FateOption{Fate::frozen, "--freeze", &SetChange::freeze, "trained parameter", "frozen"},
    FateOption{Fate::dropped, "--drop", &SetChange::drop, "parameter", "left out"},
};

// The cost of the changes of one kind.
struct Cost {
  std::vector<std::string> names;
  int64_t elements = 0;
  uint64_t states = 0;  // bytes

  void add(const Param& param) {
    names.push_back(param.name);
    if (!param.alias_of.empty()) return;
    elements += param.weight.numel();
    for (const ParamState& state : param.states) states += state.value.nbytes();
  }

  std::string text() const {
    return some_of(names) + " (" + counted(names.size(), "parameter") + ", " +
           counted(elements, "element") + ")";
  }
};

// The types of the tensors in the files of a pipeline's layers, by name: it has no `module`. Empty
// of another model.
using LayerTypes = KeyedMap<std::string, DType>;

LayerTypes layer_types(const Checkpoint& base) {
  LayerTypes types;
  for (const RegridLayer& layer : layers_with_files(base)) {
    const TorchArchive& file = *layer.files.front();
    for (const auto& [key, name] : layer.names) {
      types.emplace(name, file.info(file.root().at(key)).dtype);
    }
  }
  return types;
}

// The part of a checkpoint whose set is changed.
enum class Part : uint8_t {
  whole,  // all of it
  world,  // what the ranks of one mp rank have: the changes were chosen of the whole
};

class ChangedSet {
 public:
  ChangedSet(CheckpointDraft& draft, const Checkpoint& base, const SetChange& change,
             const WeightNames& names, const std::vector<std::string>& order,
             const Checkpoint* like, const LayerTypes& layers, Part part)
      : draft_(draft),
        base_(base),
        change_(change),
        weight_names_(names),
        told_order_(order),
        like_(like),
        layers_(layers),
        part_(part),
        where_{.file = base.tag_folder().string()},
        entries_(module_of(base)) {}

  void read() {
    if (part_ == Part::whole) refuse_base();
    for (const Param& param : base_.params()) {
      if (!param.alias_of.empty()) aliases_[param.alias_of].push_back(param.name);
    }
    choose_fates();
    if (change_.vocab_rows) {
      vocab_.emplace(draft_.inputs, base_, change_, weight_names_, dropped_);
      take(vocab_->take_files());
    }
    for (const Param& param : base_.params()) {
      if (dropped_.contains(param.name)) {
        cost_of(*fate_of(param.name)).add(param);
      } else {
        params_.push_back(changed(param));
      }
    }
    if (!change_.add.empty()) add_new();
    find_order();
    if (draft_.options.optimizer_states) regroup();
    note_costs();
    order_module();
    put_in_order();
  }

 private:
  static pickle::Value module_of(const Checkpoint& base) {
    const std::vector<CheckpointFile>& files = base.files().model;
    return files.empty() ? pickle::Value()
                         : files.front().archive->root().find_or_none(keys::kModule);
  }

  void refuse_base() const {
    if (base_.facts().from_weights()) {
      throw UsageError(where_.file +
                       " is weights: another set of parameters is for a checkpoint, "
                       "whose training continues");
    }
    if (base_.facts().changed) {
      throw UsageError(
          "--key-map gives parameters other names: change the set of them first, or "
          "in the result");
    }
    if (base_.facts().model_parallel) refuse_split();
    if (base_.files().model.empty()) {
      throw UnsupportedError(where_,
                             "is not from DeepSpeed, and only files of its runs can be changed")
          .with_hint("reshard turns it into a checkpoint of DeepSpeed first");
    }
  }

  void refuse_split() const {
    const char* option = !change_.add.empty()             ? "--add"
                         : change_.vocab_rows.has_value() ? "--resize-vocab"
                                                          : nullptr;
    if (option != nullptr) {
      throw UnsupportedError(where_,
                             "is of a model that is split over ranks, and nothing tells how "
                             "they share what is new")
          .with_hint(std::string(option) +
                     " is for a model that data-parallel ranks have whole; --freeze is for split "
                     "ones, too");
    }
    if (base_.facts().is_universal()) {
      throw UnsupportedError(where_,
                             "is of a model that is split over ranks, whose files a universal "
                             "checkpoint does not have")
          .with_hint("reshard makes native shards of it first");
    }
    const auto& entries = module_of(base_);
    const bool is_nested =
        entries.is_mapping() &&
        std::any_of(entries.as_dict().items.begin(), entries.as_dict().items.end(),
                    [&](const auto& entry) { return entries_.is_nested(entry.second); });
    if (!layers_.empty() && !change_.unfreeze.empty()) {
      throw UnsupportedError(where_,
                             "is of a pipeline, whose frozen parameters are in the files of layers "
                             "alone: --unfreeze gives them to no stage");
    }
    if (change_.drop.empty() || (layers_.empty() && !is_nested)) return;
    throw UnsupportedError(
        where_, is_nested ? "has a nested module, which --drop leaves as it is"
                          : "is of a pipeline, whose files of layers --drop leaves as they are");
  }

  // An expert is in a file of its own, and has another name on its rank.
  void refuse_experts() const {
    if (!base_.facts().model_parallel) return;
    for (const Param& param : base_.params()) {
      const FateOption* option = fate_of(param.name);
      if (option == nullptr || !is_expert(param)) continue;
      throw UnsupportedError(
          {.file = where_.file, .tensor = param.name},
          std::string("is an expert's parameter, which ") + option->name + " does not change")
          .with_hint("a pattern that does not fit experts changes the others");
    }
  }

  void take(std::vector<WeightsFile> files) {
    for (WeightsFile& file : files) draft_.weights.push_back(std::move(file));
  }

  // --- what becomes of each

  // A plain optimizer lists frozen parameters among the trained ones, and has no states of them.
  bool may_be_frozen(const Param& param) const {
    return !base_.facts().frozen_known && param.kind == ParamKind::trainable &&
           param.states.empty() && param.step.archive == nullptr;
  }

  bool is_candidate(Fate fate, const Param& param) const {
    switch (fate) {
      case Fate::unfrozen:
        return param.kind == ParamKind::frozen || may_be_frozen(param);
      case Fate::frozen:
        return param.kind == ParamKind::trainable;
      default:
        return true;
    }
  }

  void choose_fates() {
    for (const FateOption& option : kFateOptions) {
      for (const std::string& pattern : change_.*option.patterns) choose_fates(option, pattern);
    }
    for (const auto& [owner, names] : aliases_) check_tied(owner, names);
    refuse_experts();
    for (const auto& [name, option] : fates_) {
      if (option->fate == Fate::dropped) dropped_.insert(name);
    }
  }

  void choose_fates(const FateOption& option, const std::string& pattern) {
    const Patterns fits({pattern}, option.name);
    size_t fitting = 0;
    size_t changing = 0;
    for (const Param& param : base_.params()) {
      if (!fits.find_in(param.name)) continue;
      ++fitting;
      if (!is_candidate(option.fate, param)) continue;
      ++changing;
      const auto [at, is_new] = fates_.emplace(param.name, &option);
      if (is_new || at->second == &option) continue;
      throw UsageError("'" + param.name + "' is named by both " + at->second->name + " and " +
                       option.name);
    }
    if (changing > 0 || part_ == Part::world) return;
    throw UsageError(
        std::string(option.name) + " '" + pattern + "' fits no " + option.candidates +
        (fitting == 0 ? "" : ", only " + counted(fitting, "other entry", "other entries")))
        .with_hint("ckpt-inspect list shows the names, and which are frozen");
  }

  const FateOption* fate_of(const std::string& name) const {
    const auto found = fates_.find(name);
    return found == fates_.end() ? nullptr : found->second;
  }

  // A parameter is trained or frozen under all its names, and one of them owns it.
  void check_tied(const std::string& owner, const std::vector<std::string>& aliases) const {
    const FateOption* of_owner = fate_of(owner);
    for (const std::string& alias : aliases) {
      const FateOption* of_alias = fate_of(alias);
      if (of_owner == of_alias) continue;
      const bool leaves_alias = of_alias != nullptr && of_alias->fate == Fate::dropped;
      if (leaves_alias && (of_owner == nullptr || of_owner->fate != Fate::dropped)) continue;
      const bool of_owners = of_owner != nullptr;
      throw UsageError("'" + (of_owners ? owner : alias) + "' is the same parameter as '" +
                       (of_owners ? alias : owner) + "', which " +
                       (of_owners ? of_owner : of_alias)->name + " does not fit")
          .with_hint("a pattern that fits all of its names changes it");
    }
  }

  Param changed(const Param& param) {
    Param made = param;
    if (made.saved_name.empty()) made.saved_name = param.name;
    const std::string& owner = param.alias_of.empty() ? param.name : param.alias_of;
    if (vocab_ && param.kind != ParamKind::buffer && vocab_->has(owner)) {
      resize(made, owner);
      if (param.alias_of.empty()) resized_.add(param);
    }
    if (const FateOption* option = fate_of(owner)) {
      made.kind = option->fate == Fate::unfrozen ? ParamKind::trainable : ParamKind::frozen;
      retype(made);
      if (param.alias_of.empty()) cost_of(*option).add(param);
    }
    return made;
  }

  void resize(Param& param, const std::string& owner) const {
    param.weight = vocab_->weight(owner, param.weight);
    param.given = true;
    for (ParamState& state : param.states) {
      if (state.value.shape().empty() || state.value.shape().front() != vocab_->old_rows()) {
        throw UnsupportedError({.file = where_.file, .tensor = param.name},
                               "has an optimizer state '" + state.key + "' without rows of tokens");
      }
      state.value = vocab_->state(state.value);
    }
  }

  // A trained parameter has a master and, in the new run, states; a frozen one has the module's
  // type.
  void retype(Param& param) const {
    param.states.clear();
    param.step = {};
    param.others = {};
    param.fresh = param.kind == ParamKind::trainable;
    param.requires_grad = param.fresh;
    param.weight = param.weight.to(param.fresh ? DType::float32 : type_in_module(param.saved_name));
    param.given = true;
  }

  DType type_in_module(const std::string& name) const {
    if (const auto type = layers_.find(name); type != layers_.end()) {
      return type->second;
    }
    const CheckpointFile& file = base_.files().model.front();
    const pickle::Value entry = entries_.find(name);
    if (is_meta_tensor(entry)) return meta_tensor(entry).dtype;
    if (!TorchArchive::is_tensor(entry)) {
      throw UnsupportedError({.file = file.path.string(), .tensor = name},
                             "is not in `module`, which tells the type of frozen parameters");
    }
    return file.archive->info(entry).dtype;
  }

  // --- new ones

  void add_new() {
    const std::string path = change_.add.string();
    Weights weights = Weights::open(draft_.inputs, change_.add, {.of_model = true});
    KeyedMap<std::string, std::string> names;  // the engine's, by those in the files
    for (const WeightsTensor& tensor : weights.tensors()) {
      names.emplace(tensor.name, engine_name(weight_names_, tensor.name));
    }
    KeyedSet<std::string> there;
    for (const Param& param : params_) there.insert(param.name);
    for (const WeightsTensor& tensor : weights.tensors()) {
      Param param{.name = names.at(tensor.name), .weight = tensor.value};
      if (!tensor.alias_of.empty()) param.alias_of = names.at(tensor.alias_of);
      const Where where{.file = path, .tensor = param.name};
      if (!there.insert(param.name).second) {
        throw UsageError("--add: " + path + " has '" + param.name +
                         "', which the checkpoint has already")
            .with_hint(
                "--drop leaves the checkpoint's out, and --weights-from gives it other "
                "values");
      }
      const DType dtype = tensor.value.dtype();
      if (!is_floating_point(dtype) || !can_convert(dtype, DType::float32)) {
        throw UnsupportedError(
            where, "is of type " + std::string(torch_name(dtype)) + ", which no optimizer trains");
      }
      if (dtype == DType::float64) {
        throw UnsupportedError(where, "is float64: it would be rounded more than once")
            .with_hint("torch: save it with .float()");
      }
      add(std::move(param));
    }
    if (weights.tensors().empty()) throw UsageError("--add: " + path + " has no tensors");
    take(std::move(weights).take_files());
  }

  void add(Param param) {
    param.given = true;
    param.fresh = param.requires_grad = true;
    param.weight = param.weight.to(DType::float32);
    new_names_.push_back(param.name);
    added_.add(param);
    params_.push_back(std::move(param));
  }

  // --- their order and their groups

  void find_order() {
    std::vector<std::string> known = told_order_;
    if (known.empty()) {
      for (const auto& [name, value] : entries_.all()) known.push_back(name);
    }
    const KeyedSet<std::string> told(known.begin(), known.end());
    std::vector<std::string> others = new_names_;
    std::erase_if(others, [&](const std::string& name) { return told.contains(name); });
    is_order_told_ = others.empty() && !told_order_.empty();
    order_.emplace(known, others);
  }

  std::optional<ModelOrder::Place> place_of(const std::string& owner) const {
    std::optional<ModelOrder::Place> place;
    const auto look_at = [&](const std::string& name) {
      if (!order_->has(name)) return;
      const ModelOrder::Place own = order_->place(name);
      if (!place || own < *place) place = own;
    };
    look_at(owner);
    const auto tied = aliases_.find(owner);
    if (tied != aliases_.end()) std::for_each(tied->second.begin(), tied->second.end(), look_at);
    return place;
  }

  ModelOrder::Place known_place(const std::string& owner) const {
    if (const auto place = place_of(owner)) return *place;
    if (!told_order_.empty()) throw UsageError("--param-names does not have '" + owner + "'");
    throw UnsupportedError({.file = where_.file, .tensor = owner},
                           "is not in `module`: its place in the model is unknown")
        .with_hint("--param-names FILE tells the order");
  }

  void regroup() {
    KeyedSet<std::string> trained;
    std::vector<const Param*> fresh;
    for (const Param& param : params_) {
      if (!is_trained(param)) continue;
      trained.insert(param.name);
      if (param.fresh) fresh.push_back(&param);
    }
    const std::vector<ParamGroup> before = draft_.groups;
    if (before.empty() && !fresh.empty()) {
      throw UnsupportedError(where_, "does not tell the optimizer's parameter groups");
    }
    KeyedSet<std::string> grouped;
    for (ParamGroup& group : draft_.groups) {
      for (const std::string& name : group.params) {
        if (base_.find(name) == nullptr) {  // an expert by its name on its rank
          throw UnsupportedError({.file = where_.file, .tensor = name},
                                 "is a parameter of one rank alone");
        }
      }
      std::erase_if(group.params, [&](const std::string& name) { return !trained.contains(name); });
      grouped.insert(group.params.begin(), group.params.end());
    }
    std::erase_if(fresh, [&](const Param* param) { return grouped.contains(param->name); });
    std::vector<std::vector<std::string>> incoming =
        like_ == nullptr ? by_likeness(fresh, before) : as_in_like(fresh);
    for (size_t g = 0; g < incoming.size(); ++g) {
      if (!incoming[g].empty()) join(g, std::move(incoming[g]), before);
    }
  }

  std::vector<std::vector<std::string>> by_likeness(const std::vector<const Param*>& fresh,
                                                    const std::vector<ParamGroup>& before) const {
    // Groups of experts have nothing else.
    std::vector<size_t> numbers;
    std::vector<ParamGroup> others;
    for (size_t g = 0; g < before.size(); ++g) {
      if (before[g].settings.value.find_or_none("moe").is_true()) continue;
      numbers.push_back(g);
      others.push_back(before[g]);
    }
    const GroupChoice choice(base_, others);
    std::vector<std::vector<std::string>> incoming(before.size());
    for (const Param* param : fresh) {
      incoming[numbers[choice.of(param->name, param->weight.shape())]].push_back(param->name);
    }
    return incoming;
  }

  // The first of the groups that share members with a group of `like`; else a new one.
  std::vector<std::vector<std::string>> as_in_like(const std::vector<const Param*>& fresh) {
    KeyedMap<std::string, size_t> own;
    for (size_t g = 0; g < draft_.groups.size(); ++g) {
      for (const std::string& name : draft_.groups[g].params) own.emplace(name, g);
    }
    KeyedMap<std::string, size_t> group_of;  // of `draft_`, by the name of a member in `like`
    for (const ParamGroup& group : like_->groups()) {
      std::optional<size_t> same;
      for (const std::string& name : group.params) {
        const auto found = own.find(name);
        if (found != own.end()) same = same ? std::min(*same, found->second) : found->second;
      }
      if (!same) {
        same = draft_.groups.size();
        draft_.groups.push_back({.params = {}, .settings = group.settings});
      }
      for (const std::string& name : group.params) group_of.emplace(name, *same);
    }
    std::vector<std::vector<std::string>> incoming(draft_.groups.size());
    for (const Param* param : fresh) {
      const auto found = group_of.find(param->name);
      if (found == group_of.end()) {
        throw InconsistentError({.file = like_->tag_folder().string(), .tensor = param->name},
                                "is not trained there, but becomes trained");
      }
      incoming[found->second].push_back(param->name);
    }
    return incoming;
  }

  // Puts `names` among the members of the group, in the order of the model.
  void join(size_t g, std::vector<std::string> names, const std::vector<ParamGroup>& before) {
    std::vector<std::string>& members = draft_.groups[g].params;
    if (like_ != nullptr) {  // which has the order
      members.insert(members.end(), names.begin(), names.end());
      return;
    }
    const auto earlier = [&](const std::string& a, const std::string& b) {
      return known_place(a) < known_place(b);
    };
    std::sort(names.begin(), names.end(), earlier);
    const auto out_of_order = std::is_sorted_until(members.begin(), members.end(), earlier);
    if (out_of_order != members.end()) {
      throw UsageError("the optimizer has '" + *out_of_order + "' behind '" + *(out_of_order - 1) +
                       "', in a different order than the model: nothing tells the place of '" +
                       names.front() + "' in its group")
          .with_hint(
              "--like CHECKPOINT takes the order from a checkpoint of the new run, and "
              "--param-names FILE tells it");
    }
    const auto middle = static_cast<ptrdiff_t>(members.size());
    members.insert(members.end(), names.begin(), names.end());
    std::inplace_merge(members.begin(), members.begin() + middle, members.end(), earlier);
    draft_.notes.push_back(GroupChoice(base_, before).described(g) + " gets " + some_of(names));
  }

  // --- what it costs

  Cost& cost_of(const FateOption& option) { return costs_[static_cast<size_t>(option.fate)]; }

  void note_costs() {
    for (const FateOption& option : kFateOptions) {
      const Cost& cost = cost_of(option);
      if (cost.names.empty()) continue;
      std::string text = std::string(option.name) + ": " + cost.text() + " " +
                         (cost.names.size() == 1 ? "is " : "are ") + option.effect;
      if (cost.states > 0) text += "; states of " + human_bytes(cost.states) + " are lost";
      draft_.notes.push_back(std::move(text));
    }
    if (!added_.names.empty()) {
      draft_.notes.push_back("--add: " + added_.text() +
                             (added_.names.size() == 1 ? " is" : " are") +
                             " new and trained; states begin empty");
    }
    if (vocab_) note_rows();
    if (!added_.names.empty() && like_ == nullptr && !is_order_told_) {
      draft_.notes.emplace_back(
          "new parameters come last in their modules, and the new run has to give its optimizer "
          "the parameters in this order, which nothing here can check; --like CHECKPOINT takes "
          "it from a checkpoint of the new run, --param-names FILE tells it");
    }
  }

  void note_rows() {
    const int64_t before = vocab_->old_rows();
    const int64_t after = vocab_->rows();
    std::string text = "--resize-vocab: " + some_of(resized_.names) + " " +
                       (resized_.names.size() == 1 ? "has " : "have ");
    if (after > before) {
      text +=
          counted(after - before, "new row") + " (" + change_.new_rows + "), whose states are zero";
    } else {
      text += "rows " + std::to_string(after) + " to " + std::to_string(before - 1) +
              " cut off: the tokens with these numbers are lost, with their states, unless they "
              "are padding";
    }
    draft_.notes.push_back(std::move(text));
  }

  void order_module() {
    std::vector<std::pair<ModelOrder::Place, std::string>> places;
    for (const Param& param : params_) {
      if (order_->has(param.name)) places.emplace_back(order_->place(param.name), param.name);
    }
    std::sort(places.begin(), places.end());
    for (auto& [place, name] : places) draft_.module_order.push_back(std::move(name));
  }

  // As DeepSpeed's zero_to_fp32 lists them.
  void put_in_order() {
    KeyedMap<std::string, std::pair<size_t, size_t>> in_group;
    for (size_t g = 0; g < draft_.groups.size(); ++g) {
      const std::vector<std::string>& members = draft_.groups[g].params;
      for (size_t i = 0; i < members.size(); ++i) in_group.emplace(members[i], std::pair(g, i));
    }
    const auto place = [&](const Param& param) -> std::pair<size_t, size_t> {
      if (place_of_kind(param) == 1)
        return place_of(param.name).value_or(std::pair<size_t, size_t>());
      const auto found = in_group.find(param.name);
      if (place_of_kind(param) == 2 && found != in_group.end()) return found->second;
      return {};
    };
    std::stable_sort(params_.begin(), params_.end(), [&](const Param& a, const Param& b) {
      return std::pair(place_of_kind(a), place(a)) < std::pair(place_of_kind(b), place(b));
    });
    draft_.params = std::move(params_);
  }

  CheckpointDraft& draft_;
  const Checkpoint& base_;
  const SetChange& change_;
  const WeightNames& weight_names_;
  const std::vector<std::string>& told_order_;
  const Checkpoint* like_;
  const LayerTypes& layers_;
  const Part part_;
  const Where where_;
  const ModuleEntries entries_;
  KeyedMap<std::string, std::vector<std::string>> aliases_;  // by owner
  KeyedMap<std::string, const FateOption*> fates_;
  KeyedSet<std::string> dropped_;
  std::optional<VocabRows> vocab_;
  std::vector<Param> params_;
  std::vector<std::string> new_names_;
  std::optional<ModelOrder> order_;
  bool is_order_told_ = false;  // of all new ones
  std::array<Cost, 4> costs_;   // by fate
  Cost added_;
  Cost resized_;
};

Checkpoint changed(std::shared_ptr<const Checkpoint> base, const SetChange& change,
                   const WeightNames& names, const std::vector<std::string>& order,
                   const Checkpoint* like, const LayerTypes& layers, Part part) {
  CheckpointDraft draft = base->draft();
  draft.facts.changed = true;
  ChangedSet(draft, *base, change, names, order, like, layers, part).read();
  draft.changed_from = std::move(base);
  return Checkpoint(std::move(draft));
}

}  // namespace

Checkpoint changed_set(std::shared_ptr<const Checkpoint> base, const SetChange& change,
                       const WeightNames& names, const std::vector<std::string>& order,
                       const Checkpoint* like) {
  const bool is_split = base->facts().model_parallel;
  const auto layers =
      std::make_shared<const LayerTypes>(is_split ? layer_types(*base) : LayerTypes());
  Checkpoint whole = changed(base, change, names, order, like, *layers, Part::whole);
  if (!is_split) return whole;
  CheckpointDraft draft = whole.draft();
  draft.params = whole.params();
  draft.module_order = whole.module_order();
  draft.changed_from = base;
  draft.changed_world = [base, change, names, order, like, layers](uint32_t mp_rank) {
    const bool has_like = like != nullptr && like->facts().model_parallel;
    const std::optional<Checkpoint> like_world =
        has_like ? std::optional<Checkpoint>(like->world(mp_rank)) : std::nullopt;
    return changed(std::make_shared<const Checkpoint>(base->world(mp_rank)), change, names, order,
                   has_like ? &*like_world : like, *layers, Part::world);
  };
  return Checkpoint(std::move(draft));
}

}  // namespace dsckpt
