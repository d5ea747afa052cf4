#include "weights/output_names.h"

#include <algorithm>
#include <utility>

#include "base/keyed_hash.h"
#include "base/text.h"
#include "dsckpt/error.h"
#include "weights/companions.h"

namespace dsckpt {
namespace {

using Renamed = std::optional<std::vector<RenamedTensor>>;

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

Renamed hub_names(const Checkpoint& checkpoint, const std::optional<std::string>& config,
                  std::span<const ModelTensor> tensors) {
  if (!config) {
    throw UsageError("--names hub: there is no config.json beside the checkpoint")
        .with_hint("--hf-config DIR names the folder of the model's");
  }
  const HubNames hub(*config, true);
  if (hub.known() == HubNames::Known::no) {
    throw UnsupportedError({.file = checkpoint.tag_folder().string()},
                           "--names hub: " + hub.why_not())
        .with_hint("--names module keeps the names that the module has");
  }
  if (hub.known() == HubNames::Known::same || are_hubs(hub, tensors)) return std::nullopt;
  if (const std::string* foreign = hub.foreign_name(tensors)) {
    throw UnsupportedError({.file = checkpoint.tag_folder().string(), .tensor = *foreign},
                           "--names hub: is not a name of " + hub.model())
        .with_hint("--names module keeps the names that the module has");
  }
  return hub.to_hub(tensors);
}

Renamed names_by_config(const std::optional<std::string>& config,
                        std::span<const ModelTensor> tensors, std::vector<std::string>& notes) {
  if (!config) {
    note_module_names(tensors,
                      "no config.json shows their model; --hf-config DIR names the folder of one",
                      notes);
    return std::nullopt;
  }
  const HubNames hub(*config);
  switch (hub.known()) {
    case HubNames::Known::no:
      note_module_names(tensors, hub.why_not(), notes);
      return std::nullopt;
    case HubNames::Known::older:
      if (HubNames(*config, true).known() == HubNames::Known::rules) {
        note_module_names(
            tensors, "config.json is from an older release; --names hub writes the hub's names",
            notes);
      }
      return std::nullopt;
    case HubNames::Known::same:
      return std::nullopt;
    case HubNames::Known::rules:
      break;
  }
  const std::string stay = "names stay the module's, not those of the hub: ";
  if (are_hubs(hub, tensors)) return std::nullopt;
  if (const std::string* foreign = hub.foreign_name(tensors)) {
    notes.push_back(stay + "'" + printable(*foreign) + "' is not a name of " + hub.model());
    return std::nullopt;
  }
  try {
    std::vector<RenamedTensor> renamed = hub.to_hub(tensors);
    if (have_other_names(tensors, renamed)) {
      notes.push_back("names are the hub's, as save_pretrained of " + hub.model() +
                      " writes them (transformers " + std::string(transformers_of_rules()) +
                      "); --names module keeps the module's");
    }
    return renamed;
  } catch (const UnsupportedError& error) {
    notes.push_back(stay + error.what());
    return std::nullopt;
  }
}

}  // namespace

Renamed output_names(TensorNames names, const Checkpoint& checkpoint, const WeightsOptions& options,
                     std::span<const ModelTensor> tensors, std::vector<std::string>& notes) {
  switch (names) {
    case TensorNames::hub:
      return hub_names(checkpoint, config_text(checkpoint, options), tensors);
    case TensorNames::by_config:
      if (options.hf_config.empty() && !options.companions) return std::nullopt;
      return names_by_config(config_text(checkpoint, options), tensors, notes);
    case TensorNames::module:
      break;
  }
  return std::nullopt;
}

std::vector<OutputTensor> with_output_names(TensorNames names, const Checkpoint& checkpoint,
                                            const WeightsOptions& options,
                                            std::vector<OutputTensor> tensors,
                                            std::vector<std::string>& notes) {
  std::vector<ModelTensor> modules;
  modules.reserve(tensors.size());
  for (const OutputTensor& tensor : tensors) modules.push_back({tensor.name, tensor.source});
  Renamed renamed = output_names(names, checkpoint, options, modules, notes);
  if (!renamed) return tensors;
  std::vector<OutputTensor> made;
  made.reserve(renamed->size());
  KeyedMap<std::string, std::string> owners;
  for (RenamedTensor& each : *renamed) {
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
