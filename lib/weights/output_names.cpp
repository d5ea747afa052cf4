#include "weights/output_names.h"

#include <algorithm>
#include <utility>

#include "base/keyed_hash.h"
#include "base/patterns.h"
#include "base/text.h"
#include "dsckpt/error.h"
#include "weights/companions.h"

namespace dsckpt {
namespace {

bool have_other_names(std::span<const ModelTensor> tensors,
                      const std::vector<RenamedTensor>& results) {
  return std::any_of(results.begin(), results.end(), [&](const RenamedTensor& each) {
    const ModelTensor& first = tensors[each.inputs.front()];
    return each.name != first.name || each.source.shape() != first.source.shape();
  });
}

// Notes that the hub may have other names, if the user did not choose the names.
void note_module_names(std::span<const ModelTensor> tensors, const std::string& why,
                       std::vector<std::string>& notes) {
  const std::string* fused = fused_experts(tensors);
  if (fused == nullptr) return;
  notes.push_back("experts are fused ('" + printable(*fused) +
                  "'), as transformers 5 has them and few others load them: " + why);
}

// Returns whether the names are the hub's already, and a load and save would keep them.
bool are_hubs(const HubNames& hub, std::span<const ModelTensor> tensors) {
  try {
    return hub.to_module(tensors, {}).has_value();
  } catch (const UnsupportedError&) {
    return false;
  }
}

std::vector<ModelTensor> stripped(std::span<const ModelTensor> tensors,
                                  const std::vector<std::string>& prefixes) {
  std::vector<ModelTensor> behind(tensors.begin(), tensors.end());
  for (ModelTensor& tensor : behind) tensor.name = without_prefix(tensor.name, prefixes);
  return behind;
}

// Returns whether these are names of the module that the hub has not.
bool are_modules(const HubNames& hub, std::span<const ModelTensor> tensors) {
  if (hub.foreign_name(tensors) != nullptr) return false;
  try {
    return have_other_names(tensors, hub.to_hub(tensors));
  } catch (const UnsupportedError&) {
    return false;
  }
}

// Returns the prefix that a wrapper has put before all names of the module, as "model."; "" if
// there is none. Rules may take such names for the hub's.
std::string wrappers_prefix(const HubNames& hub, std::span<const ModelTensor> tensors) {
  const std::string& first = tensors.front().name;
  for (size_t dot = first.find('.'); dot != first.npos; dot = first.find('.', dot + 1)) {
    const std::string prefix = first.substr(0, dot + 1);
    const bool have_it = std::all_of(tensors.begin(), tensors.end(), [&](const ModelTensor& each) {
      return each.name.size() > prefix.size() && each.name.starts_with(prefix);
    });
    if (!have_it) return {};
    if (are_modules(hub, stripped(tensors, {prefix}))) return prefix;
  }
  return {};
}

// The decision on the names of some tensors.
class NameChoice {
 public:
  NameChoice(const Checkpoint& checkpoint, const WeightsOptions& options,
             std::span<const ModelTensor> tensors, std::vector<std::string>& notes)
      : checkpoint_(checkpoint),
        options_(options),
        config_(config_text(checkpoint, options)),
        tensors_(tensors),
        notes_(notes) {}

  std::optional<HubTensors> hubs() const {
    if (!config_) {
      throw UsageError("--names hub: there is no config.json beside the checkpoint")
          .with_hint("--hf-config DIR names the folder of the model's");
    }
    const HubNames hub(*config_, true);
    if (!hub.why_not().empty()) {
      throw UnsupportedError({.file = checkpoint_.tag_folder().string()},
                             "--names hub: " + hub.why_not())
          .with_hint("--names module keeps the names that the module has");
    }
    if (hub.known() == HubNames::Known::same) return std::nullopt;
    const std::string* foreign = hub.foreign_name(tensors_);
    if (foreign == nullptr) {
      if (are_hubs(hub, tensors_)) return std::nullopt;
      return HubTensors{hub.to_hub(tensors_), false};
    }
    const std::vector<ModelTensor> behind = stripped(tensors_, options_.strip_prefix);
    if (hub.foreign_name(behind) == nullptr) {
      if (are_hubs(hub, behind)) return std::nullopt;
      return HubTensors{hub.to_hub(behind), true};
    }
    const std::string prefix = wrappers_prefix(hub, tensors_);
    if (prefix.empty() && are_hubs(hub, tensors_)) return std::nullopt;
    throw UnsupportedError({.file = checkpoint_.tag_folder().string(), .tensor = *foreign},
                           "--names hub: is not a name of " + hub.model())
        .with_hint(prefix.empty()
                       ? "--names module keeps the names that the module has"
                       : "--strip-prefix " + shell_word(prefix) + " takes a wrapper's prefix off");
  }

  std::optional<HubTensors> by_config() const {
    if (!config_)
      return keep("no config.json shows their model; --hf-config DIR names the folder of one");
    const HubNames hub(*config_);
    switch (hub.known()) {
      case HubNames::Known::unknown:
        if (fused_experts(tensors_) == nullptr) {
          notes_.push_back("names stay as they are: " + hub.why_not());
        }
        return keep(hub.why_not());
      case HubNames::Known::no:
        return keep(hub.why_not());
      case HubNames::Known::older:
        if (HubNames(*config_, true).known() != HubNames::Known::rules) return std::nullopt;
        return keep(std::string(hub.release().empty()
                                    ? "config.json names no release of transformers"
                                    : "config.json is from an older release") +
                    "; --names hub writes the hub's names");
      case HubNames::Known::same:
        return std::nullopt;
      case HubNames::Known::rules:
        break;
    }
    if (!options_.strip_prefix.empty()) return behind_prefix(hub);
    if (const std::string* foreign = hub.foreign_name(tensors_)) {
      const std::string prefix = wrappers_prefix(hub, tensors_);
      if (prefix.empty() && are_hubs(hub, tensors_)) return std::nullopt;
      return stay("'" + printable(*foreign) + "' is not a name of " + hub.model() +
                  (prefix.empty() ? ""
                                  : "; --strip-prefix " + shell_word(prefix) +
                                        " takes a wrapper's prefix off"));
    }
    if (are_hubs(hub, tensors_)) return std::nullopt;
    return translated(hub, tensors_, false);
  }

 private:
  // The names stay: it matters where there are fused experts.
  std::optional<HubTensors> keep(const std::string& why) const {
    note_module_names(tensors_, why, notes_);
    return std::nullopt;
  }

  std::optional<HubTensors> stay(const std::string& why) const {
    notes_.push_back("names stay the module's, not those of the hub: " + why);
    return std::nullopt;
  }

  std::optional<HubTensors> behind_prefix(const HubNames& hub) const {
    if (hub.foreign_name(tensors_) == nullptr) return std::nullopt;
    const std::vector<ModelTensor> behind = stripped(tensors_, options_.strip_prefix);
    if (hub.foreign_name(behind) != nullptr || are_hubs(hub, behind)) return std::nullopt;
    return translated(hub, behind, true);
  }

  std::optional<HubTensors> translated(const HubNames& hub, std::span<const ModelTensor> tensors,
                                       bool is_stripped) const {
    try {
      HubTensors made{hub.to_hub(tensors), is_stripped};
      if (have_other_names(tensors, made.tensors)) {
        notes_.push_back("names are the hub's, as save_pretrained of " + hub.model() +
                         " writes them (transformers " + std::string(transformers_of_rules()) +
                         "); --names module keeps the module's");
      }
      return made;
    } catch (const UnsupportedError& error) {
      return stay(error.what());
    }
  }

  const Checkpoint& checkpoint_;
  const WeightsOptions& options_;
  const std::optional<std::string> config_;
  const std::span<const ModelTensor> tensors_;
  std::vector<std::string>& notes_;
};

}  // namespace

std::optional<HubTensors> output_names(TensorNames names, const Checkpoint& checkpoint,
                                       const WeightsOptions& options,
                                       std::span<const ModelTensor> tensors,
                                       std::vector<std::string>& notes) {
  const bool has_config = !options.hf_config.empty() || options.companions;
  if (names == TensorNames::module || (names == TensorNames::by_config && !has_config)) {
    return std::nullopt;
  }
  if (tensors.empty()) return std::nullopt;
  const NameChoice choice(checkpoint, options, tensors, notes);
  return names == TensorNames::hub ? choice.hubs() : choice.by_config();
}

std::vector<OutputTensor> with_output_names(TensorNames names, const Checkpoint& checkpoint,
                                            const WeightsOptions& options,
                                            std::vector<OutputTensor> tensors,
                                            std::vector<std::string>& notes) {
  std::vector<ModelTensor> modules;
  modules.reserve(tensors.size());
  for (const OutputTensor& tensor : tensors) modules.push_back({tensor.name, tensor.source});
  std::optional<HubTensors> renamed = output_names(names, checkpoint, options, modules, notes);
  if (!renamed) return tensors;
  std::vector<OutputTensor> made;
  made.reserve(renamed->tensors.size());
  KeyedMap<std::string, std::string> owners;
  for (RenamedTensor& each : renamed->tensors) {
    std::string key;
    for (const size_t i : each.inputs) {
      key += (tensors[i].alias_of.empty() ? tensors[i].name : tensors[i].alias_of) + '\0';
    }
    const auto [owner, is_new] = owners.emplace(key + std::to_string(each.part), each.name);
    made.push_back({each.name, std::move(each.source), is_new ? std::string() : owner->second});
  }
  return made;
}

}  // namespace dsckpt
