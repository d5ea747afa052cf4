#include "weights/selection.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "base/dtype_names.h"
#include "base/kernels.h"
#include "base/keyed_hash.h"
#include "base/patterns.h"
#include "base/text.h"
#include "checkpoint/renamed.h"
#include "dsckpt/error.h"
#include "job/cast.h"
#include "weights/output_names.h"

namespace dsckpt {
namespace {

class Selection {
 public:
  explicit Selection(const WeightsOptions& options)
      : options_(options),
        include_(options.include, "--include"),
        exclude_(options.exclude, "--exclude"),
        keep_fp32_(options.keep_fp32, "--keep-fp32") {}

  bool wants(const std::string& name, ParamKind kind) const {
    if (options_.exclude_frozen_parameters && kind == ParamKind::frozen) return false;
    if (!include_.empty() && !include_.find_in(name)) return false;
    return !exclude_.find_in(name);
  }

  TensorSource cast(const Param& param, std::vector<std::string>& notes) const {
    const bool keeps_fp32 =
        keep_fp32_.find_in(param.saved_name.empty() ? param.name : param.saved_name);
    return dsckpt::cast(param, keeps_fp32 ? DType::float32 : options_.dtype, notes);
  }

 private:
  const WeightsOptions& options_;
  Patterns include_;
  Patterns exclude_;
  Patterns keep_fp32_;
};

UsageError nothing_left(const Checkpoint& checkpoint) {
  UsageError error("no tensor is left to write");
  if (checkpoint.params().empty()) return error;
  std::vector<std::string> names;
  for (const Param& param : checkpoint.params()) names.push_back(param.name);
  return std::move(error).with_hint("the names are " + some_of(names) + "; `ckpt-inspect list " +
                                    shell_word(checkpoint.tag_folder().string()) +
                                    "` shows them all");
}

void note_options_without_effect(const Checkpoint& checkpoint, const WeightsOptions& options,
                                 std::vector<std::string>& notes) {
  const auto any_name = [&](const auto& fits) {
    return std::any_of(checkpoint.params().begin(), checkpoint.params().end(),
                       [&](const Param& param) { return fits(param.name); });
  };
  for (const auto& [option, patterns] : {std::pair("--include", &options.include),
                                         {"--exclude", &options.exclude},
                                         {"--keep-fp32", &options.keep_fp32}}) {
    for (const std::string& pattern : *patterns) {
      const Patterns one({pattern}, option);
      if (any_name([&](const std::string& name) { return one.find_in(name); })) continue;
      notes.push_back(std::string(option) + " '" + pattern + "': no tensor's name matches");
    }
  }
  for (const std::string& prefix : options.strip_prefix) {
    if (any_name([&](const std::string& name) { return name.starts_with(prefix); })) continue;
    notes.push_back("--strip-prefix '" + prefix + "': no tensor's name begins with it");
  }
  if (!options.keep_fp32.empty() && options.dtype == DType::float32) {
    notes.emplace_back("--keep-fp32 changes nothing: --dtype is float32 for all");
  }
}

const std::string& owner_of(const Param& param) {
  return param.alias_of.empty() ? param.name : param.alias_of;
}

std::vector<ModelTensor> sources_of(const std::vector<const Param*>& params) {
  std::vector<ModelTensor> sources;
  sources.reserve(params.size());
  for (const Param* param : params) {
    sources.push_back({param->name, without_padding(*param, param->weight)});
  }
  return sources;
}

std::vector<const Param*> wanted_params(const Checkpoint& checkpoint, const Selection& selection) {
  std::vector<const Param*> params;
  for (const Param& param : checkpoint.params()) {
    if (selection.wants(param.name, param.kind)) params.push_back(&param);
  }
  return params;
}

std::vector<ModelTensor> chosen_sources(const Checkpoint& checkpoint,
                                        const WeightsOptions& options) {
  return sources_of(wanted_params(checkpoint, Selection(options)));
}

// A tensor joined from incomplete parts would be wrong.
void refuse_incomplete_parts(const KeyMap& rules, const Checkpoint& checkpoint,
                             const WeightsOptions& options) {
  for (const IncompleteParam& param : choose_incomplete(checkpoint, options)) {
    if (!rules.converts(without_prefix(param.name, options.strip_prefix))) continue;
    throw UsageError("'" + param.name + "' is incomplete, and --key-map cuts or joins it")
        .with_hint("--exclude leaves out the tensor that it would be a part of");
  }
}

std::vector<Param> copies_of(const std::vector<const Param*>& params) {
  std::vector<Param> copies;
  copies.reserve(params.size());
  for (const Param* param : params) {
    copies.push_back(*param);
    copies.back().saved_name = param->name;
  }
  return copies;
}

// Returns the parameters under the hub's names. A tensor that is made of tied tensors only is tied
// too.
std::vector<Param> hubs_params(const std::vector<RenamedTensor>& renamed,
                               const std::vector<const Param*>& params) {
  std::vector<Param> made;
  KeyedMap<std::string, std::string> owners;
  for (const RenamedTensor& each : renamed) {
    const Param& first = *params[each.inputs.front()];
    std::string key;
    for (const size_t i : each.inputs) key += owner_of(*params[i]) + '\0';
    const auto [owner, is_new] = owners.emplace(key + std::to_string(each.part), each.name);
    made.push_back({.name = each.name, .kind = first.kind, .weight = each.source});
    if (!is_new) made.back().alias_of = owner->second;
    made.back().saved_name = first.name;
  }
  return made;
}

std::vector<Param> with_prefixes_stripped(std::vector<Param> params,
                                          const WeightsOptions& options) {
  for (Param& param : params) {
    for (std::string* name : {&param.name, &param.alias_of}) {
      *name = without_prefix(*name, options.strip_prefix);
    }
  }
  return params;
}

}  // namespace

std::vector<ChosenTensor> choose_named_tensors(const Checkpoint& checkpoint,
                                               const WeightsOptions& options,
                                               std::vector<std::string>& notes) {
  TensorNames names = options.names;
  if (names == TensorNames::hub && options.states) {
    throw UsageError("--names hub and --states are both given")
        .with_hint("optimizer states are the module's parameters'; run again for the weights");
  }
  const bool stay = !options.key_map.empty() || options.states;
  if (names == TensorNames::by_config && stay) names = TensorNames::module;
  if (names == TensorNames::module) return choose_tensors(checkpoint, options, notes);
  const std::vector<ModelTensor> tensors = chosen_sources(checkpoint, options);
  const auto renamed = output_names(names, checkpoint, options, tensors, notes);
  return choose_tensors(checkpoint, options, notes, renamed ? &*renamed : nullptr);
}

std::vector<ChosenTensor> choose_tensors(const Checkpoint& checkpoint,
                                         const WeightsOptions& options,
                                         std::vector<std::string>& notes, const HubTensors* hub) {
  if (options.exclude_frozen_parameters && !checkpoint.facts().frozen_known) {
    throw UnsupportedError({.file = checkpoint.tag_folder().string()},
                           checkpoint.facts().from_weights()
                               ? "does not show which parameters are frozen: it has only weights"
                               : "does not show which parameters are frozen: it is from stage 0 in "
                                 "fp32, and trained ones have the same shapes")
        .with_hint("name them with --exclude");
  }
  const Selection selection(options);
  const std::vector<const Param*> wanted = wanted_params(checkpoint, selection);
  KeyMap rules = options.key_map.empty() ? KeyMap() : read_key_map(options.key_map);
  std::vector<ChosenTensor> tensors;
  // From the data's owner in the checkpoint to the written type and to the owner in the output. An
  // alias gets its own data if its owner is left out or has another type.
  KeyedMap<std::string, std::pair<DType, std::string>> written;
  const auto add = [&](const Param& param, std::string name, TensorSource source,
                       const std::string& owner, std::shared_ptr<const Param> made) {
    OutputTensor tensor{std::move(name), std::move(source), {}};
    const auto [first, is_first] =
        written.emplace(owner, std::pair(tensor.source.dtype(), tensor.name));
    if (!is_first && first->second.first == tensor.source.dtype()) {
      tensor.alias_of = first->second.second;
    }
    tensors.push_back({&param, std::move(tensor), std::move(made)});
  };
  if (hub == nullptr && rules.empty()) {
    NewNames names("--strip-prefix");
    for (const Param* param : wanted) {
      std::string name = without_prefix(param->name, options.strip_prefix);
      names.add(param->name, name);
      add(*param, std::move(name), selection.cast(*param, notes), owner_of(*param), nullptr);
    }
  } else {
    refuse_incomplete_parts(rules, checkpoint, options);
    std::vector<Param> params =
        hub == nullptr ? copies_of(wanted) : hubs_params(hub->tensors, wanted);
    if (hub == nullptr || !hub->stripped) params = with_prefixes_stripped(params, options);
    for (RenamedParam& each : renamed_params(params, rules, "--strip-prefix or --key-map")) {
      const auto made = std::make_shared<const Param>(std::move(each.param));
      add(*made, made->name, selection.cast(*made, notes), owner_of(*made), made);
    }
    note_unused(rules, params.size(), notes);
  }
  if (tensors.empty() && !choose_incomplete(checkpoint, options).empty()) {
    throw InconsistentError({.file = checkpoint.tag_folder().string()},
                            "no parameter is complete without the files that are lost");
  }
  if (tensors.empty()) throw nothing_left(checkpoint);
  note_options_without_effect(checkpoint, options, notes);
  return tensors;
}

std::vector<std::string> choose_valueless(const Checkpoint& checkpoint,
                                          const WeightsOptions& options) {
  const Selection selection(options);
  std::vector<std::string> chosen;
  for (const std::string& name : checkpoint.valueless()) {
    if (selection.wants(name, ParamKind::frozen)) chosen.push_back(name);
  }
  return chosen;
}

std::vector<IncompleteParam> choose_incomplete(const Checkpoint& checkpoint,
                                               const WeightsOptions& options) {
  const Selection selection(options);
  std::vector<IncompleteParam> chosen;
  for (const IncompleteParam& param : checkpoint.incomplete()) {
    if (selection.wants(param.name, param.kind)) chosen.push_back(param);
  }
  return chosen;
}

}  // namespace dsckpt
