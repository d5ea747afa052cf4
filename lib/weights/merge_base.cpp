#include "weights/merge_base.h"

#include <algorithm>
#include <array>
#include <map>
#include <memory>
#include <string_view>
#include <utility>

#include "checkpoint/other_values.h"
#include "checkpoint/weights.h"
#include "weights/peft_adapter.h"

namespace dsckpt {
namespace fs = std::filesystem;

bool is_embedding(const std::string& name) {
  constexpr std::array<std::string_view, 7> kEmbeddings{
      "lm_head.weight",  "embed_out.weight",       "embed_tokens.weight",  "wte.weight",
      "embed_in.weight", "word_embeddings.weight", "tok_embeddings.weight"};
  return std::any_of(kEmbeddings.begin(), kEmbeddings.end(), [&](std::string_view each) {
    return name == each || name.ends_with("." + std::string(each));
  });
}

bool is_output_embedding(const std::string& name) {
  return name.ends_with("lm_head.weight") || name.ends_with("embed_out.weight");
}

void BaseTensors::add(Tensor tensor) {
  if (!index.emplace(tensor.name, tensors.size()).second) {
    throw InconsistentError({.file = display, .tensor = tensor.name}, "appears twice");
  }
  tensors.push_back(std::move(tensor));
}

const BaseTensors::Tensor* BaseTensors::find(const std::string& name) const {
  const auto found = index.find(name);
  return found == index.end() ? nullptr : &tensors[found->second];
}

bool BaseTensors::has_output_embedding() const {
  return std::any_of(tensors.begin(), tensors.end(),
                     [](const Tensor& tensor) { return is_output_embedding(tensor.name); });
}

void BaseTensors::refuse(const std::string& name) const {
  const auto input = std::find_if(tensors.begin(), tensors.end(), [](const Tensor& tensor) {
    return is_embedding(tensor.name) || tensor.name.ends_with("shared.weight");
  });
  if (is_output_embedding(name) && input != tensors.end() && !has_output_embedding()) {
    throw UnsupportedError({.file = display}, "ties '" + name + "' to '" + input->name +
                                                  "': merged, both would change")
        .with_hint("an untied base takes it");
  }
  throw InconsistentError({.file = display}, "has no tensor '" + name + "'")
      .with_hint(
          "the base has to be the model that was trained, with its config.json if its names are "
          "the hub's; --key-map renames the adapter's tensors");
}

const BaseTensors::Tensor& BaseTensors::at(const std::string& name) const {
  if (const Tensor* tensor = find(name)) return *tensor;
  const std::string module = name.substr(0, name.rfind('.'));
  for (const char* packed : {".qweight", ".weight_packed", ".weight.absmax", ".blocks"}) {
    if (find(module + packed) == nullptr) continue;
    throw UnsupportedError({.file = display, .tensor = module + packed},
                           "is quantized: adapters are merged into floating weights");
  }
  if (find(module + ".in_proj_weight") != nullptr) {
    throw UnsupportedError({.file = display, .tensor = module + ".in_proj_weight"},
                           "belongs to a MultiheadAttention, whose adapters are not merged");
  }
  refuse(name);
}

BaseTensors base_of_checkpoint(const Checkpoint& checkpoint,
                               const std::vector<ChosenTensor>& chosen) {
  BaseTensors base{.display = checkpoint.tag_folder().string()};
  for (const std::string& name : checkpoint.valueless()) {
    base.valueless.push_back(name_in_base(name));
  }
  const bool has_base = std::any_of(chosen.begin(), chosen.end(), [](const ChosenTensor& each) {
    return each.param->kind != ParamKind::buffer && !adapter_part(each.tensor.name, true);
  });
  if (!has_base) {
    throw InconsistentError({.file = base.display},
                            "has no frozen parameters: the run left them out")
        .with_hint("--merge BASE takes the folder of the model that was trained");
  }
  std::map<std::string, std::string> names;  // of the checkpoint, to names of the base
  for (const ChosenTensor& each : chosen) {
    const std::string& name = each.tensor.name;
    if (adapter_part(name, true)) continue;
    names.emplace(each.param->name, name_in_base(name));
  }
  for (const ChosenTensor& each : chosen) {
    const auto name = names.find(each.param->name);
    if (name == names.end() || base.find(name->second) != nullptr) continue;
    const auto owner = names.find(each.param->alias_of);
    base.add({name->second, *each.param,
              owner == names.end() || owner->second == name->second ? "" : owner->second});
  }
  return base;
}

namespace {

// Counts the places of the adapter that `tensors` lack. A trained copy may have no place of its
// own, so one counts only where a tensor is there that it does not fit.
size_t lacking_places(const BaseUse& use, std::span<const WeightsTensor> tensors) {
  KeyedMap<std::string, const WeightsTensor*> by_name;
  KeyedSet<std::string> targeted;  // modules with parameters that have LoRA of their own
  for (const WeightsTensor& tensor : tensors) {
    by_name.emplace(tensor.name, &tensor);
    if (use.settings.targets_parameter(tensor.name)) {
      targeted.insert(tensor.name.substr(0, tensor.name.rfind('.')));
    }
  }
  size_t lacking = 0;
  for (const auto& [name, layer] : use.parts.layers) {
    if (!by_name.contains(layer.module + ".weight") && !targeted.contains(layer.module)) ++lacking;
  }
  for (const auto& [module, rows] : use.parts.rows) {
    if (!by_name.contains(module + ".weight")) ++lacking;
  }
  for (const auto& [name, trained] : use.parts.whole) {
    if (!by_name.contains(name)) ++lacking;
  }
  return lacking;
}

}  // namespace

BaseTensors base_of_weights(InputFiles& inputs, const fs::path& path, const BaseUse& use,
                            std::vector<std::string>& notes) {
  const auto folders = std::make_shared<Folders>();
  const TagFolder found = find_input(path, {.folders = folders}, Beside::shards);
  BaseTensors base{.display = path.string()};
  const auto lacking = [&](std::span<const WeightsTensor> tensors) {
    return lacking_places(use, tensors);
  };
  const Checkpoint weights = found.has_only_weights()
                                 ? weights_alone(inputs, found.path,
                                                 {.as_module = use.as_module,
                                                  .lacking = lacking,
                                                  .folders = folders,
                                                  .choice = found.note})
                                 : Checkpoint::open_found(inputs, found, {.folders = folders});
  base.valueless = weights.valueless();
  base.from_hub = weights.facts().from_hub;
  for (const std::string& note : weights.notes()) notes.push_back(path.string() + ": " + note);
  for (const Param& param : weights.params()) {
    base.add({param.name, param, param.alias_of});
  }
  return base;
}

}  // namespace dsckpt
