#include "checkpoint/dcp_keys.h"

#include <algorithm>
#include <array>
#include <iterator>
#include <span>
#include <utility>
#include <variant>

#include "base/keyed_hash.h"
#include "base/text.h"
#include "dsckpt/error.h"

namespace dsckpt {
namespace {

constexpr std::string_view kStateKey = "state";
constexpr std::string_view kGroupsKey = "param_groups";

// The step of the path that is called `part` and stands behind `front` characters of the name.
std::optional<size_t> step_at(const DcpPath& path, size_t front, std::string_view part) {
  size_t at = 0;
  for (size_t i = 0; i < path.size() && at <= front; ++i) {
    const std::string step = dcp_key(std::span(&path[i], 1));
    if (at == front) return step == part ? std::optional(i) : std::nullopt;
    at += step.size() + 1;
  }
  return std::nullopt;
}

// Where `part`, one of the names between the dots of `key` or several, begins; npos if nowhere.
size_t find_part(std::string_view key, std::string_view part) {
  for (size_t at = key.find(part); at != key.npos; at = key.find(part, at + 1)) {
    const size_t end = at + part.size();
    if ((at == 0 || key[at - 1] == '.') && (end == key.size() || key[end] == '.')) return at;
  }
  return key.npos;
}

// The names of a model and its optimizer, without the dot.
std::string called(std::string_view front) {
  return std::string(front.substr(0, front.ends_with('.') ? front.size() - 1 : front.size()));
}

}  // namespace

std::string without_wrappers(std::string_view name) {
  constexpr std::array<std::string_view, 3> kWrappers{"_orig_mod", "_checkpoint_wrapped_module",
                                                      "_fsdp_wrapped_module"};
  std::string text;
  bool is_first = true;
  for (size_t at = 0; at <= name.size();) {
    const size_t dot = std::min(name.find('.', at), name.size());
    const std::string_view part = name.substr(at, dot - at);
    const bool is_wrapper =
        std::find(kWrappers.begin(), kWrappers.end(), part) != kWrappers.end() ||
        (is_first && part == "module" && dot < name.size());
    if (!is_wrapper) {
      if (!is_first) text += ".";
      text += part;
      is_first = false;
    }
    at = dot + 1;
  }
  return text;
}

bool DcpKeys::Optimizer::is_numbered() const {
  return !states.empty() && std::all_of(states.begin(), states.end(),
                                        [](const Named& state) { return is_digits(state.name); });
}

DcpKeys::DcpKeys(std::vector<DcpEntry> entries, const std::string& model)
    : entries_(std::move(entries)) {
  find_optimizers();
  for (const DcpEntry& entry : entries_) {
    const auto [optimizer, rest] = owner_of(entry.name());
    if (optimizer != nullptr) {
      add_entry(*optimizer, rest, entry);
    } else if (entry.is_tensor()) {
      others_.push_back(entry);
    }
  }
  find_model(model);
  rename_params();
}

void DcpKeys::find_optimizers() {
  std::set<std::string> fronts;
  const auto find = [&](std::string_view part, std::string_view end) {
    for (const DcpEntry& entry : entries_) {
      const std::string& key = entry.name();
      const size_t at = key.ends_with(end) ? find_part(key, part) : key.npos;
      if (at != key.npos) fronts.insert(key.substr(0, at));
    }
  };
  find(kGroupsKey, "");
  if (fronts.empty()) find(kStateKey, ".exp_avg");
  for (const std::string& front : fronts) {
    front_sizes_.insert(front.size());
    optimizers_.push_back({.front = front});
  }
}

std::pair<DcpKeys::Optimizer*, std::string_view> DcpKeys::owner_of(std::string_view key) {
  for (const size_t size : front_sizes_) {
    if (size > key.size()) break;
    const std::string_view front = key.substr(0, size);
    const auto found =
        std::lower_bound(optimizers_.begin(), optimizers_.end(), front,
                         [](const Optimizer& a, std::string_view b) { return a.front < b; });
    if (found == optimizers_.end() || found->front != front) continue;
    const std::string_view rest = key.substr(size);
    for (const std::string_view part : {kStateKey, kGroupsKey}) {
      if (rest.starts_with(part) && (rest.size() == part.size() || rest[part.size()] == '.')) {
        return {&*found, rest};
      }
    }
  }
  return {nullptr, {}};
}

void DcpKeys::add_entry(Optimizer& optimizer, std::string_view rest, const DcpEntry& entry) {
  const bool is_state = !rest.starts_with(kGroupsKey);
  const std::string_view part = is_state ? kStateKey : kGroupsKey;
  if (rest.size() <= part.size() + 1) {
    if (!is_state) optimizer.whole_groups = entry;
    return;
  }
  const std::string_view inner = rest.substr(part.size() + 1);
  const DcpPath& path = entry.value->path;
  const size_t front = entry.name().size() - rest.size();
  const std::optional<size_t> index = step_at(path, front, part);
  if (index && path.size() == *index + 2) return;  // a dict without tensors, as one value
  if (index && path.size() > *index + 2) {
    std::string name = dcp_key(std::span(path).subspan(*index + 1, 1));
    std::string key = dcp_key(std::span(path).subspan(*index + 2));
    if (is_state) {
      optimizer.states.push_back({std::move(name), std::move(key), entry});
    } else if (const auto* group = std::get_if<int64_t>(&path[*index + 1])) {
      optimizer.grouped.push_back({*group, std::move(key), entry});
    }
    return;
  }
  // Flattened, or nothing tells.
  const size_t dot = inner.rfind('.');
  if (dot == inner.npos) return;
  Named named{std::string(inner.substr(0, dot)), std::string(inner.substr(dot + 1)), entry};
  if (is_state) {
    optimizer.states.push_back(std::move(named));
  } else if (path.empty() && is_digits(named.name) && named.name.size() < 10) {
    optimizer.grouped.push_back({std::stoll(named.name), std::move(named.key), entry});
  } else {
    optimizer.flat_settings.push_back(std::move(named));
  }
}

std::string DcpKeys::front_of(const DcpEntry& entry) {
  const DcpPath& path = entry.value->path;
  if (path.empty()) return entry.name().starts_with("model.") ? "model." : "";
  std::string front = dcp_key(std::span(path).first(path.size() - 1));
  return front.empty() ? front : front + ".";
}

bool DcpKeys::fits(const Optimizer& optimizer, const std::set<std::string>& names) {
  const auto has = [&](const Named& each) { return names.contains(without_wrappers(each.name)); };
  const auto& some = optimizer.states.empty() ? optimizer.flat_settings : optimizer.states;
  return !some.empty() && !optimizer.is_numbered() && std::all_of(some.begin(), some.end(), has);
}

void DcpKeys::find_model(const std::string& model) {
  Names names;  // by front, without wrappers
  for (const DcpEntry& entry : others_) {
    const std::string front = front_of(entry);
    if (!entry.name().starts_with(front)) continue;
    names[front].insert(without_wrappers(std::string_view(entry.name()).substr(front.size())));
  }
  const std::optional<std::string> front = chosen_front(names, model);
  for (const DcpEntry& entry : others_) {
    const std::string own = front_of(entry);
    if (!front || (own == *front && entry.name().starts_with(*front))) {
      model_.push_back({entry.name().substr(front ? front->size() : 0), "", entry});
    } else if (model.empty()) {
      left_out_.push_back(entry);
    } else {
      ++of_others_;
    }
  }
  find_optimizer(front.value_or(""), model, names);
}

void DcpKeys::find_optimizer(const std::string& front, const std::string& model,
                             const Names& names) {
  std::vector<size_t> own;
  for (size_t i = 0; i < optimizers_.size(); ++i) {
    const auto of_model = names.find(front);
    const bool fits_it = of_model == names.end() || fits(optimizers_[i], of_model->second);
    // Numbers, and none at all, fit any.
    const bool may_fit = optimizers_[i].is_numbered() || optimizers_[i].states.empty();
    if (optimizers_.size() == 1 || fits_it || may_fit) own.push_back(i);
  }
  const auto is_called = [&](size_t i) {
    return optimizers_[i].front.find(model) != std::string::npos;
  };
  if (own.size() > 1 && !model.empty()) {
    std::vector<size_t> named;
    std::copy_if(own.begin(), own.end(), std::back_inserter(named), is_called);
    if (!named.empty()) own = std::move(named);
  }
  if (own.size() == 1) optimizer_ = own.front();
  if (own.size() > 1) {
    for (const size_t i : own) rivals_.push_back(called(optimizers_[i].front));
  }
}

void DcpKeys::rename_params() {
  if (optimizer_ >= optimizers_.size()) return;
  KeyedMap<std::string, std::string> names;
  for (const Named& each : model_) names.emplace(without_wrappers(each.name), each.name);
  KeyedSet<std::string_view> own;
  for (const Named& each : model_) own.insert(each.name);
  for (auto* some : {&optimizers_[optimizer_].states, &optimizers_[optimizer_].flat_settings}) {
    for (Named& each : *some) {
      if (own.contains(each.name)) continue;
      const auto found = names.find(without_wrappers(each.name));
      if (found != names.end()) each.name = found->second;
    }
  }
}

std::optional<std::string> DcpKeys::chosen_front(const Names& names,
                                                 const std::string& model) const {
  std::vector<std::string> fronts;
  for (const auto& [front, some] : names) fronts.push_back(front);
  if (!model.empty()) {
    const auto is_called = [&](const std::string& front) {
      return front == model + "." || front.ends_with("." + model + ".");
    };
    const auto found = std::find_if(fronts.begin(), fronts.end(), is_called);
    if (found != fronts.end()) return *found;
    std::vector<std::string> all;
    for (const std::string& front : fronts) all.push_back(called(front));
    throw UsageError("--model: no model is called '" + model + "', but " + some_of(all));
  }
  if (fronts.size() == 1) return fronts.front();
  // A model is a dict that an optimizer belongs to, or one with the same parameters as such a dict.
  std::vector<std::string> models;
  for (const auto& [front, some] : names) {
    const bool is_trained =
        std::any_of(optimizers_.begin(), optimizers_.end(),
                    [&, &own = some](const Optimizer& each) { return fits(each, own); });
    const bool is_twin =
        std::any_of(names.begin(), names.end(), [&, &own = some, &it = front](const auto& other) {
          return other.first != it && other.second == own;
        });
    if (is_trained || is_twin) models.push_back(front);
  }
  if (models.empty() && optimizers_.size() > 1) models = fronts;
  if (models.size() > 1) {
    std::vector<std::string> all;
    for (const std::string& front : models) all.push_back(called(front));
    throw InconsistentError({}, "holds " + counted(all.size(), "model") + ": " + some_of(all))
        .with_hint("--model " + all.front() + " reads one of them");
  }
  if (models.size() == 1) return models.front();
  for (const std::string_view known : {"model.", "state_dict.", "module.", ""}) {
    if (names.contains(std::string(known))) return std::string(known);
  }
  for (const std::string& front : fronts) {
    if (front.ends_with(".model.")) models.push_back(front);
  }
  if (models.size() == 1) return models.front();
  return std::nullopt;
}

}  // namespace dsckpt
