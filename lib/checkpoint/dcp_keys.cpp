#include "checkpoint/dcp_keys.h"

#include <algorithm>
#include <functional>
#include <span>
#include <utility>
#include <variant>

#include "base/text.h"

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

}  // namespace

DcpKeys::DcpKeys(std::vector<DcpEntry> entries) : entries_(std::move(entries)) {
  find_optimizers();
  for (const DcpEntry& entry : entries_) {
    if (is_optimizers(entry)) {
      add_optimizer_entry(entry);
    } else if (entry.is_tensor()) {
      others_.push_back(entry);
    }
  }
  find_model();
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
  for (const std::string& front : fronts) front_sizes_.insert(front.size());
  optimizers_.assign(fronts.begin(), fronts.end());
}

std::optional<std::string_view> DcpKeys::behind_front(std::string_view key) const {
  for (const size_t size : front_sizes_) {
    if (size > key.size()) break;
    const std::string_view front = key.substr(0, size);
    if (!std::binary_search(optimizers_.begin(), optimizers_.end(), front, std::less<>())) continue;
    const std::string_view rest = key.substr(size);
    for (const std::string_view part : {kStateKey, kGroupsKey}) {
      if (rest.starts_with(part) && (rest.size() == part.size() || rest[part.size()] == '.')) {
        return rest;
      }
    }
  }
  return std::nullopt;
}

void DcpKeys::add_optimizer_entry(const DcpEntry& entry) {
  const std::string_view rest = *behind_front(entry.name());
  const bool is_state = !rest.starts_with(kGroupsKey);
  const std::string_view part = is_state ? kStateKey : kGroupsKey;
  if (rest.size() <= part.size() + 1) {
    if (!is_state) whole_groups_ = entry;
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
      states_.push_back({std::move(name), std::move(key), entry});
    } else if (const auto* group = std::get_if<int64_t>(&path[*index + 1])) {
      grouped_.push_back({*group, std::move(key), entry});
    }
    return;
  }
  // Flattened, or nothing tells.
  const size_t dot = inner.rfind('.');
  if (dot == inner.npos) return;
  Named named{std::string(inner.substr(0, dot)), std::string(inner.substr(dot + 1)), entry};
  if (is_state) {
    states_.push_back(std::move(named));
  } else if (path.empty() && is_digits(named.name) && named.name.size() < 10) {
    grouped_.push_back({std::stoll(named.name), std::move(named.key), entry});
  } else {
    flat_settings_.push_back(std::move(named));
  }
}

std::string DcpKeys::front_of(const DcpEntry& entry) {
  const DcpPath& path = entry.value->path;
  if (path.empty()) return entry.name().starts_with("model.") ? "model." : "";
  std::string front = dcp_key(std::span(path).first(path.size() - 1));
  return front.empty() ? front : front + ".";
}

void DcpKeys::find_model() {
  std::map<std::string, std::set<std::string_view>> names;  // by front
  for (const DcpEntry& entry : others_) {
    const std::string front = front_of(entry);
    if (!entry.name().starts_with(front)) continue;
    names[front].insert(std::string_view(entry.name()).substr(front.size()));
  }
  std::string front;
  bool all = false;
  if (names.size() == 1) {
    front = names.begin()->first;
  } else if (const auto* found = chosen_front(names)) {
    front = *found;
  } else {
    all = true;  // dicts of the user's own
  }
  for (const DcpEntry& entry : others_) {
    if (all || (front_of(entry) == front && entry.name().starts_with(front))) {
      model_.push_back({entry.name().substr(all ? 0 : front.size()), "", entry});
    } else {
      left_out_.push_back(entry);
    }
  }
}

bool DcpKeys::is_numbered() const {
  return !states_.empty() && std::all_of(states_.begin(), states_.end(),
                                         [](const Named& state) { return is_digits(state.name); });
}

const std::string* DcpKeys::chosen_front(
    const std::map<std::string, std::set<std::string_view>>& names) const {
  std::vector<const std::string*> fitting;
  for (const auto& [front, some] : names) {
    const bool has_all =
        !states_.empty() && !is_numbered() &&
        std::all_of(states_.begin(), states_.end(),
                    [&, &own = some](const Named& state) { return own.contains(state.name); });
    if (has_all) fitting.push_back(&front);
  }
  if (fitting.size() == 1) return fitting.front();
  for (const std::string_view called : {"model.", "state_dict.", "module.", ""}) {
    const auto found = names.find(std::string(called));
    if (found != names.end()) return &found->first;
  }
  std::vector<const std::string*> models;
  for (const auto& [front, some] : names) {
    if (front.ends_with(".model.")) models.push_back(&front);
  }
  return models.size() == 1 ? models.front() : nullptr;
}

}  // namespace dsckpt
