#include "checkpoint/renamed.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "base/keyed_hash.h"
#include "base/text.h"
#include "checkpoint/layout.h"
#include "checkpoint/made_values.h"
#include "checkpoint/module_entries.h"
#include "deepspeed/keys.h"
#include "deepspeed/shard_name.h"
#include "dsckpt/error.h"
#include "format/meta_tensor.h"
#include "io/text_file.h"
#include "pickle/python_objects.h"

namespace dsckpt {
namespace fs = std::filesystem;
using pickle::Document;
using pickle::Kind;
using pickle::Value;
namespace {

// Parameters that a rule makes others of, and these in the making.
class JoinedParams {
 public:
  JoinedParams(std::span<const Param> params, const KeyMap::Change& change)
      : params_(params), change_(change), first_(params[change.inputs().front()]) {
    for (const size_t i : change_.inputs()) check(params_[i]);
  }

  std::vector<Param> made() const {
    std::vector<Param> made;
    for (ModelTensor& each : change_.results(
             [&](size_t i) { return without_padding(params_[i], params_[i].weight); })) {
      made.push_back({.name = std::move(each.name),
                      .kind = first_.kind,
                      .weight = std::move(each.source),
                      .step = first_.step,
                      .others = first_.others,
                      .requires_grad = first_.requires_grad,
                      .given = true});
    }
    for (size_t s = 0; s < first_.states.size(); ++s) {
      std::vector<ModelTensor> values = change_.results(
          [&](size_t i) { return without_padding(params_[i], params_[i].states[s].value); });
      for (size_t i = 0; i < made.size(); ++i) {
        made[i].states.push_back({first_.states[s].key, std::move(values[i].source)});
      }
    }
    return made;
  }

 private:
  [[noreturn]] void refuse(const Param& param, const std::string& why) const {
    throw UnsupportedError({.tensor = param.name}, why)
        .with_hint(change_.origin() + " makes one of them");
  }

  void check(const Param& param) const {
    const std::string than = " than '" + first_.name + "'";
    if (param.kind != first_.kind) {
      refuse(param, std::string("is ") + to_string(param.kind) + ", '" + first_.name + "' " +
                        to_string(first_.kind));
    }
    const bool same_states = std::equal(
        param.states.begin(), param.states.end(), first_.states.begin(), first_.states.end(),
        [](const ParamState& a, const ParamState& b) { return a.key == b.key; });
    if (!same_states) refuse(param, "has different optimizer states" + than);
    for (const ParamState& state : param.states) {
      if (state.value.shape() == param.weight.shape()) continue;
      refuse(param, "has an optimizer state '" + printable(state.key) + "' of another shape");
    }
    if (!same_value(param.step, first_.step)) {
      refuse(param, "was stepped a different number of times" + than);
    }
    const bool same_others =
        std::equal(param.others.begin(), param.others.end(), first_.others.begin(),
                   first_.others.end(), [](const WholeState& a, const WholeState& b) {
                     return a.key == b.key && (is_computed_anew(a) || same_value(a.value, b.value));
                   });
    if (!same_others) refuse(param, "has different values in its optimizer states" + than);
    for (const WholeState& other : param.others) {
      if (is_computed_anew(other) || other.value.value.is_none() || other.same_on_all_ranks) {
        continue;
      }
      refuse(param, "has an optimizer state '" + printable(other.key) +
                        "' that is neither one value an element nor a number");
    }
  }

  std::span<const Param> params_;
  const KeyMap::Change& change_;
  const Param& first_;
};

// An empty container, or None.
bool holds_nothing(const Value& value) {
  if (value.is_mapping()) return value.as_dict().items.empty();
  switch (value.kind()) {
    case Kind::none:
      return true;
    case Kind::tuple:
    case Kind::list:
    case Kind::set:
    case Kind::frozen_set:
      return value.as_sequence().empty();
    case Kind::object: {  // set([]), as in torch.save
      const std::span<const Value> arguments = value.as_object().arguments.sequence_or_empty();
      return value.as_object().items.empty() &&
             std::all_of(arguments.begin(), arguments.end(), [](const Value& each) {
               return each.is(Kind::list) && each.as_sequence().empty();
             });
    }
    default:
      return false;
  }
}

std::vector<Param> made_of(std::span<const Param> params, const KeyMap::Change& change) {
  const Param& first = params[change.inputs().front()];
  std::vector<Param> made;
  if (change.is_renaming()) {
    const auto weight_of = [&](size_t i) { return params[i].weight; };
    made.push_back(first);
    made.front().name = std::move(change.results(weight_of).front().name);
  } else {
    made = JoinedParams(params, change).made();
  }
  for (Param& param : made) {
    if (param.saved_name.empty()) {
      param.saved_name = first.saved_name.empty() ? first.name : first.saved_name;
    }
  }
  return made;
}

}  // namespace

KeyMap read_key_map(const fs::path& path) {
  try {
    return KeyMap::parse(read_text(path, "rules of names"), path.string());
  } catch (const IoError& error) {
    error.hinted("--key-map takes a file with lines of REGEX => REPLACEMENT").raise();
  }
}

std::vector<RenamedParam> renamed_params(std::span<const Param> params, KeyMap& rules,
                                         const std::string& options) {
  std::vector<std::string> names;
  names.reserve(params.size());
  for (const Param& param : params) names.push_back(param.name);
  NewNames taken(options);
  std::vector<RenamedParam> renamed;
  // By what owns the elements before and which part of these it is.
  KeyedMap<std::string, std::string> owners;
  for (const KeyMap::Change& change : rules.changes(names)) {
    std::string key;
    for (const size_t i : change.inputs()) {
      key += (params[i].alias_of.empty() ? params[i].name : params[i].alias_of) + '\0';
    }
    key += change.origin();
    size_t part = 0;
    for (Param& param : made_of(params, change)) {
      taken.add(names[change.inputs().front()], param.name);
      const auto [owner, is_new] = owners.emplace(key + '\0' + std::to_string(part++), param.name);
      param.alias_of = is_new ? std::string() : owner->second;
      renamed.push_back({std::move(param), change.inputs()});
    }
  }
  return renamed;
}

void note_unused(const KeyMap& rules, size_t tensors, std::vector<std::string>& notes) {
  const std::vector<std::string> unused = rules.unused();
  if (!rules.empty() && unused.size() == rules.size() && tensors > 0) {
    throw UsageError("--key-map: no rule fits the name of a tensor: " + some_of(unused));
  }
  for (const std::string& rule : unused) notes.push_back(rule + ": fits no name");
}

namespace {

// The states of a tied parameter are its owner's: apart it would have none.
void refuse_untied(const std::vector<Param>& params, const RenamedParam& each) {
  if (!is_trained(each.param)) return;
  for (const size_t i : each.inputs) {
    if (params[i].alias_of.empty()) continue;
    throw UnsupportedError(
        {.tensor = params[i].name},
        "is tied to '" + params[i].alias_of + "', which --key-map turns into something else")
        .with_hint(
            "a rule with a pattern for both names, '^(a|b)\\.weight$ => \\1...', keeps them tied");
  }
}

}  // namespace

Checkpoint renamed(std::shared_ptr<const Checkpoint> base, KeyMap& rules) {
  CheckpointDraft draft = base->draft();
  draft.facts.changed = true;
  const std::vector<Param>& params = base->params();
  std::vector<RenamedParam> renamed = renamed_params(params, rules, "--key-map");
  note_unused(rules, params.size(), draft.notes);
  KeyedMap<std::string_view, std::vector<std::string>> made;  // by the first that it is made of
  KeyedMap<std::string_view, std::string_view> first_of;      // of each that becomes something
  for (const RenamedParam& each : renamed) {
    const std::string& first = params[each.inputs.front()].name;
    made[first].push_back(each.param.name);
    for (const size_t i : each.inputs) first_of.emplace(params[i].name, first);
  }
  for (ParamGroup& group : draft.groups) {
    KeyedSet<std::string_view> members(group.params.begin(), group.params.end());
    std::vector<std::string> names;
    KeyedSet<std::string_view> done;
    for (const std::string& name : group.params) {
      const auto first = first_of.find(name);
      if (first == first_of.end()) {  // an expert by its name on its rank
        throw UnsupportedError({.tensor = name}, "is a parameter of one rank alone");
      }
      if (!members.contains(first->second)) {
        throw UnsupportedError({.tensor = name}, "is in a different group of the optimizer than '" +
                                                     std::string(first->second) +
                                                     "', with which --key-map makes one of it");
      }
      if (!done.insert(first->second).second) continue;
      const std::vector<std::string>& made_names = made.at(first->second);
      names.insert(names.end(), made_names.begin(), made_names.end());
    }
    group.params = std::move(names);
  }
  for (RenamedParam& each : renamed) {
    refuse_untied(params, each);
    draft.params.push_back(std::move(each.param));
  }
  draft.changed_from = std::move(base);
  return Checkpoint(std::move(draft));
}

std::vector<WeightsTensor> renamed_weights(const Weights& weights, const WeightNames& names,
                                           std::vector<std::string>& notes) {
  std::vector<Param> params;
  for (const WeightsTensor& tensor : weights.tensors()) {
    params.push_back({.name = engine_name(names, tensor.name), .weight = tensor.value});
    if (!tensor.alias_of.empty()) params.back().alias_of = engine_name(names, tensor.alias_of);
  }
  std::vector<WeightsTensor> made;
  for (RenamedParam& each : renamed_params(params, *names.rules, "--key-map")) {
    made.push_back(
        {std::move(each.param.name), std::move(each.param.weight), std::move(each.param.alias_of)});
  }
  note_unused(*names.rules, params.size(), notes);
  return made;
}

namespace {

// The parameters in the order of the new model's state_dict. Unless another order is known, each
// stands where the file has the first of its sources.
std::vector<const Param*> in_module_order(const Checkpoint& checkpoint,
                                          const ModuleEntries& entries) {
  std::vector<const Param*> ordered;
  KeyedSet<std::string_view> placed;
  const auto add = [&](const Param& param) {
    if (placed.insert(param.name).second) ordered.push_back(&param);
  };
  for (const std::string& name : checkpoint.module_order()) add(*checkpoint.find(name));
  KeyedMap<std::string_view, std::vector<const Param*>> made;  // by their names in the file
  for (const Param& param : checkpoint.params()) made[param.saved_name].push_back(&param);
  for (const auto& [name, value] : entries.all()) {
    const auto found = made.find(name);
    if (found == made.end()) continue;
    for (const Param* param : found->second) add(*param);
  }
  for (const Param& param : checkpoint.params()) add(param);
  return ordered;
}

}  // namespace

Value renamed_module(ArchiveCopy& copy, const Checkpoint& checkpoint, const std::string& file,
                     const Value& saved, const MakeEntry& make) {
  const auto is_tensor = [](const Value& value) {
    return is_meta_tensor(value) || TorchArchive::is_tensor(value);
  };
  Document& document = copy.document();
  const ModuleEntries entries(saved);
  const Value dict = ordered_dict(document);
  for (const Param* param : in_module_order(checkpoint, entries)) {
    const bool is_new = param->saved_name.empty();
    const Value entry = is_new ? Value() : entries.find(param->saved_name);
    if (!is_new && !is_tensor(entry)) continue;
    document.set_item(dict, document.string(param->name), make(*param, entry));
  }
  for (const auto& [name, value] : entries.all()) {
    if (!is_tensor(value)) {
      document.set_item(dict, document.string(name), copy.of(value));
    } else if (checkpoint.changed_from()->find(name) == nullptr) {
      throw UnsupportedError({.file = file, .tensor = name},
                             "is a parameter of the model whose values are in no file");
    }
  }
  return dict;
}

namespace {

// Values of a model-states file by the new names.
class RenamedFile {
 public:
  // `rank`: whose file it is, of data-parallel ones.
  RenamedFile(ArchiveCopy& copy, const Checkpoint& checkpoint, std::string file, uint32_t rank)
      : copy_(copy), checkpoint_(checkpoint), file_(std::move(file)), rank_(rank) {}

  std::optional<Value> value(std::string_view key, const Value& saved) {
    if (key == keys::kBufferNames) return buffer_names(document(), checkpoint_.params());
    if (key == keys::kModule && saved.is_mapping()) {
      return renamed_module(
          copy_, checkpoint_, file_, saved,
          [&](const Param& param, const Value& entry) { return tensor_of(param, entry); });
    }
    if (key == keys::kSharedParams && saved.is_mapping()) return shared_params();
    if (key == keys::kParamShapes && saved.is(Kind::list)) return param_shapes();
    if (key == keys::kFrozenParamShapes && saved.is_mapping()) {
      return of_frozen([&](const Param& param) { return shape_of(param); });
    }
    if (key == keys::kFrozenParamFragments && saved.is_mapping()) {
      return of_frozen([&](const Param& param) { return fragment_of(param, saved); });
    }
    return std::nullopt;
  }

 private:
  Document& document() { return copy_.document(); }

  Value shape_of(const Param& param) { return torch_size(document(), param.weight.shape()); }

  // Where the file has `saved` of it, or of the first that it is made of.
  Value tensor_of(const Param& param, const Value& saved) {
    if (!param.given) return copy_.of(saved);
    const Param& before = *checkpoint_.changed_from()->find(param.saved_name);
    if (is_meta_tensor(saved)) {
      const MetaTensor tensor{.dtype = meta_tensor(saved).dtype,
                              .shape = param.weight.shape(),
                              .strides = contiguous_strides(param.weight.shape())};
      return make_meta_tensor(document(), tensor);
    }
    const TensorInfo info = copy_.from().info(saved);
    if (info.shape != before.weight.shape()) {
      // Stage 3 has placeholders in `module`.
      if (numel(info.shape) <= 1) return copy_.of(saved);
      throw UnsupportedError({.file = file_, .tensor = param.saved_name},
                             "is of another shape in `module`");
    }
    const std::string& owner = param.alias_of.empty() ? param.name : param.alias_of;
    const auto [found, is_new] = storages_.try_emplace(owner, 0);
    if (is_new) found->second = copy_.writer().storage(param.weight.to(info.dtype));
    return copy_.writer().tensor(found->second, param.weight.shape());
  }

  // Stage 3 keeps the rank's piece of what is frozen, filled up with zeros.
  Value fragment_of(const Param& param, const Value& saved) {
    const Value fragment = saved.find_or_none(param.saved_name);
    if (!param.given || checkpoint_.facts().zero_stage != 3) return tensor_of(param, fragment);
    const int64_t ranks = std::max<int64_t>(checkpoint_.facts().mesh.dp, 1);
    const int64_t count = param.weight.numel();
    const int64_t piece = (count + ranks - 1) / ranks;
    const int64_t begin = std::min(piece * rank_, count);
    const int64_t used = std::min(piece, count - begin);
    const TensorSource value = param.weight.to(copy_.from().info(fragment).dtype);
    return copy_.writer().tensor(
        TensorSource::cat(0, {value.flatten().narrow(0, begin, used),
                              TensorSource::zeros(value.dtype(), {piece - used})}));
  }

  Value shared_params() {
    const Value dict = document().dict();
    for (const Param& param : checkpoint_.params()) {
      if (param.alias_of.empty() || param.kind == ParamKind::buffer) continue;
      copy_.set(dict, param.name, document().string(param.alias_of));
    }
    return dict;
  }

  // A dict for each of the optimizer's groups.
  Value param_shapes() {
    std::vector<Value> groups;
    for (const ParamGroup& group : checkpoint_.groups()) {
      groups.push_back(ordered_dict(document()));
      for (const std::string& name : group.params) {
        const Param* param = checkpoint_.find(name);
        if (param != nullptr) copy_.set(groups.back(), name, shape_of(*param));
      }
    }
    return document().list(std::move(groups));
  }

  template <typename F>
  Value of_frozen(F&& make) {
    const Value dict = ordered_dict(document());
    for (const Param& param : checkpoint_.params()) {
      if (param.kind != ParamKind::frozen || !param.alias_of.empty()) continue;
      copy_.set(dict, param.name, make(param));
    }
    return dict;
  }

  ArchiveCopy& copy_;
  const Checkpoint& checkpoint_;
  const std::string file_;
  const uint32_t rank_;
  KeyedMap<std::string, TorchArchiveWriter::StorageId> storages_;
};

}  // namespace

void lay_out_renamed(PlanBuilder& plan, const Checkpoint& checkpoint, const CheckpointFile& file,
                     std::string path, const ChangeValue& change) {
  ArchiveCopy copy(*file.archive);
  const auto name = parse_shard_name(file.path.filename().string());
  RenamedFile renamed(copy, checkpoint, file.path.string(), name ? name->dp_rank : 0);
  const Value root = copy.dict_of(
      file.archive->root(), [&](std::string_view key, const Value& value) -> std::optional<Value> {
        if (const std::optional<Value> changed = change(key, value)) return changed;
        if (const std::optional<Value> made = renamed.value(key, value)) return made;
        return copy.of(value);
      });
  copy.lay_out(root, plan, std::move(path));
}

bool keeps_names(const Checkpoint& checkpoint) {
  const Checkpoint* before = checkpoint.changed_from();
  const std::vector<Param>& params = checkpoint.params();
  return before == nullptr || std::all_of(params.begin(), params.end(), [&](const Param& param) {
           const Param* old = before->find(param.name);
           return old != nullptr && param.saved_name == param.name &&
                  old->weight.shape() == param.weight.shape();
         });
}

void refuse_renamed_slices(const Checkpoint& checkpoint) {
  if (keeps_names(checkpoint)) return;
  const Where where{.file = checkpoint.tag_folder().string()};
  if (checkpoint.facts().model_parallel) {
    throw UnsupportedError(where,
                           "is of a model that is split over ranks; --key-map is for one that "
                           "data-parallel ranks have whole")
        .with_hint("zero-to-fp32 and to-dcp take it: they write whole tensors");
  }
  if (checkpoint.files().model.empty()) return;
  const Value root = checkpoint.files().model.front().archive->root();
  for (const std::string_view key : {keys::kUniversalCheckpointInfo, keys::kSparseTensorNames}) {
    const Value value = root.find_or_none(key);
    if (holds_nothing(value)) continue;
    throw UnsupportedError(
        {.file = checkpoint.files().model.front().path.string(), .member = std::string(key)},
        "has the names and shapes of parameters that are others now, which are not changed there");
  }
}

}  // namespace dsckpt
