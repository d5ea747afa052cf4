#include "checkpoint/hub_weights.h"

#include <algorithm>
#include <optional>
#include <system_error>
#include <utility>

#include "base/keyed_hash.h"
#include "checkpoint/names/hub_names.h"
#include "dsckpt/error.h"
#include "io/content_name.h"
#include "io/input_file.h"

namespace dsckpt {
namespace fs = std::filesystem;
namespace {

std::optional<std::string> config_beside(const fs::path& path) {
  std::error_code failed;
  const fs::path folder = fs::is_directory(path, failed) ? path : path.parent_path();
  const fs::path config = folder / "config.json";
  const std::optional<fs::path> stored = stored_path(config);
  if (!stored || !fs::is_regular_file(*stored, failed)) return std::nullopt;
  const InputFile file(config);
  if (file.size() > InputFile::kMostAtOnce) return std::nullopt;
  const std::vector<std::byte> bytes = file.read(0, file.size());
  return std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size());
}

// True if each parameter of `target` has a tensor, under one of the names that it is tied to.
template <typename Names>
bool are_all_in(const Checkpoint& target, const Names& names) {
  KeyedSet<std::string> found;
  for (const Param& param : target.params()) {
    if (names.contains(param.name)) {
      found.insert(param.alias_of.empty() ? param.name : param.alias_of);
    }
  }
  return std::all_of(target.params().begin(), target.params().end(), [&](const Param& param) {
    return param.kind == ParamKind::buffer || !param.alias_of.empty() || found.contains(param.name);
  });
}

std::vector<ModelTensor> sources_in(const std::vector<WeightsTensor>& tensors) {
  std::vector<ModelTensor> sources;
  sources.reserve(tensors.size());
  for (const WeightsTensor& tensor : tensors) sources.push_back({tensor.name, tensor.value});
  return sources;
}

// Tied tensors become tied ones.
std::vector<WeightsTensor> converted(const std::vector<WeightsTensor>& tensors,
                                     std::vector<RenamedTensor> results) {
  std::vector<WeightsTensor> made;
  made.reserve(results.size());
  KeyedMap<std::string, std::string> owners;
  for (RenamedTensor& each : results) {
    std::string key;
    for (const size_t i : each.inputs) {
      key += (tensors[i].alias_of.empty() ? tensors[i].name : tensors[i].alias_of) + '\0';
    }
    key += std::to_string(each.part);
    const auto [owner, is_new] = owners.emplace(key, each.name);
    made.push_back({each.name, std::move(each.source), is_new ? std::string() : owner->second});
  }
  return made;
}

class HubWeights {
 public:
  HubWeights(const std::vector<WeightsTensor>& tensors, const WeightNames& names,
             const Checkpoint* target)
      : tensors_(tensors), names_(names), target_(target) {}

  bool fit_already() const {
    KeyedSet<std::string> names;
    for (const WeightsTensor& tensor : tensors_) {
      const std::string name = engine_name(names_, tensor.name);
      const Shape* shape = shape_of(name);
      if (shape != nullptr && *shape != tensor.value.shape()) return false;
      names.insert(name);
    }
    return are_all_in(*target_, names);
  }

  // True if they have the hub's names.
  bool stay_on_hub(const HubNames& hub) const {
    try {
      const auto results = hub.to_hub(sources_in(tensors_));
      return std::all_of(results.begin(), results.end(), [&](const RenamedTensor& each) {
        return each.name == tensors_[each.inputs.front()].name;
      });
    } catch (const UnsupportedError&) {
      return false;
    }
  }

  // nullopt if the rules do not fit, or the result does not fit the target.
  std::optional<std::vector<RenamedTensor>> made_by(const HubNames& hub) const {
    try {
      HubNames::ShapeOf of_target;
      if (target_ != nullptr) {
        of_target = [this](const std::string& name) { return shape_of(engine_name(names_, name)); };
      }
      auto results = hub.to_module(sources_in(tensors_), of_target);
      if (!results || target_ == nullptr) return results;
      KeyedSet<std::string> names;
      for (const RenamedTensor& each : *results) names.insert(engine_name(names_, each.name));
      if (!are_all_in(*target_, names)) return std::nullopt;
      return results;
    } catch (const UnsupportedError&) {
      return std::nullopt;
    }
  }

 private:
  const Shape* shape_of(const std::string& name) const {
    const Param* param = target_ == nullptr ? nullptr : target_->find(name);
    return param == nullptr ? nullptr : &param->weight.shape();
  }

  const std::vector<WeightsTensor>& tensors_;
  const WeightNames& names_;
  const Checkpoint* target_;
};

bool are_other_names(const std::vector<WeightsTensor>& tensors,
                     const std::vector<RenamedTensor>& results) {
  return std::any_of(results.begin(), results.end(), [&](const RenamedTensor& each) {
    const WeightsTensor& first = tensors[each.inputs.front()];
    return each.name != first.name || each.source.shape() != first.value.shape();
  });
}

}  // namespace

std::string engine_name(const WeightNames& names, const std::string& name) {
  const std::string& strip = names.strip_prefix;
  const bool stripped = name.starts_with(strip) && name.size() > strip.size();
  return names.add_prefix + (stripped ? name.substr(strip.size()) : name);
}

ModuleTensors as_module_has(const Weights& weights, const fs::path& path, const WeightNames& names,
                            const Checkpoint* target, std::vector<std::string>& notes) {
  const std::vector<WeightsTensor>& tensors = weights.tensors();
  const HubWeights hub_weights(tensors, names, target);
  const size_t lacking = names.lacking ? names.lacking(tensors) : 0;
  const bool stay =
      target == nullptr ? !names.as_module && lacking == 0 : hub_weights.fit_already();
  if (stay) return {tensors};
  const std::optional<std::string> config = config_beside(path);
  if (!config) return {tensors};
  const HubNames hub(*config, true);
  if (hub.known() != HubNames::Known::rules) return {tensors};
  std::optional<std::vector<RenamedTensor>> made = hub_weights.made_by(hub);
  const std::string whose =
      hub.model() + " of transformers " + std::string(transformers_of_rules());
  if (!made && target == nullptr && lacking == 0 && hub_weights.stay_on_hub(hub)) {
    notes.push_back("names are those of the files; " + whose +
                    " may have others: reshard --like CHECKPOINT takes those of a run");
  }
  if (!made || !are_other_names(tensors, *made)) return {tensors};
  if (names.lacking) {
    std::vector<WeightsTensor> modules = converted(tensors, *made);
    const size_t then = names.lacking(modules);
    if (then < lacking) return {std::move(modules), true};
    if (names.as_module && then > lacking) {
      notes.emplace_back("names are those of the files, since the adapter has them, too");
    }
    if (!names.as_module || then > lacking) return {tensors};
  }
  if (target == nullptr && HubNames(*config).known() == HubNames::Known::older) {
    notes.push_back("names are those of the files, of a release of transformers before 5; " +
                    whose + " has others: reshard --like CHECKPOINT takes those of a run");
    return {tensors};
  }
  notes.push_back("names are the module's, as " + whose + " has them; those of the files are the " +
                  "hub's");
  return {converted(tensors, std::move(*made)), true};
}

}  // namespace dsckpt
