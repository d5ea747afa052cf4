#include "checkpoint/find/all_checkpoints.h"

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <map>
#include <system_error>
#include <tuple>
#include <utility>

#include "checkpoint/find/choose.h"
#include "checkpoint/find/folders.h"
#include "checkpoint/find/tag_folder.h"
#include "dsckpt/error.h"

namespace dsckpt {
namespace fs = std::filesystem;

std::vector<SavedState> several_states(Folders& folders, const fs::path& path) {
  std::error_code failed;
  if (!fs::is_directory(path, failed)) return {};
  std::vector<SavedState> states = find_states(folders, with_name(path));
  if (states.size() < 2) return {};
  for (SavedState& state : states) look_into(folders, state);
  return states;
}

namespace {

// "step9" before "step10".
bool is_before(const std::string& a, const std::string& b) {
  const auto number_at = [](const std::string& text, size_t at) {
    size_t end = at;
    while (end < text.size() && std::isdigit(static_cast<unsigned char>(text[end])) != 0) ++end;
    while (at + 1 < end && text[at] == '0') ++at;
    return std::pair(text.substr(at, end - at), end);
  };
  size_t i = 0;
  size_t j = 0;
  while (i < a.size() && j < b.size()) {
    const auto [of_a, end_a] = number_at(a, i);
    const auto [of_b, end_b] = number_at(b, j);
    if (!of_a.empty() && !of_b.empty()) {
      if (of_a != of_b) return std::tuple(of_a.size(), of_a) < std::tuple(of_b.size(), of_b);
      i = end_a;
      j = end_b;
    } else if (a[i] != b[j]) {
      return a[i] < b[j];
    } else {
      ++i;
      ++j;
    }
  }
  return a.size() - i < b.size() - j;
}

// The states that may be checkpoints, with the facts in their files.
StatesOfModel states_below(const fs::path& path, const std::string& model) {
  std::error_code failed;
  if (!fs::exists(path, failed)) throw IoError({.file = path.string()}, "cannot open", ENOENT);
  Folders folders;
  std::vector<SavedState> states = without_older_tags(path, find_states(folders, path));
  std::erase_if(states, [&](const SavedState& state) {
    // The tags themselves count; a tag's own folder has none.
    return (state.is_latest && !state.damage.empty()) || (state.folder == path && !state.is_file());
  });
  if (states.empty()) {
    throw InconsistentError({.file = path.string()}, "holds no checkpoints")
        .with_hint("give the folder that holds the tags");
  }
  StatesOfModel of_one = of_model(folders, path, std::move(states), model);
  for (SavedState& state : of_one.states) look_into(folders, state);
  return of_one;
}

std::vector<NamedCheckpoint> named(const fs::path& path, StatesOfModel of_one) {
  std::vector<SavedState>& states = of_one.states;
  std::stable_sort(states.begin(), states.end(), [](const SavedState& a, const SavedState& b) {
    if (a.step != b.step) return a.step.value_or(-1) < b.step.value_or(-1);
    return is_before(a.own().string(), b.own().string());
  });
  std::map<std::string, size_t> names;
  const auto own_name = [&](const SavedState& state) {
    if (state.is_file() || state.named == path) return fs::path(state.tag).filename().string();
    return state.below(path).filename().string();
  };
  for (const SavedState& state : states) ++names[own_name(state)];
  std::vector<NamedCheckpoint> all;
  for (SavedState& state : states) {
    std::string name = own_name(state);
    if (names[name] > 1) {
      name = state.below(path).string();
      std::replace(name.begin(), name.end(), '/', '-');
    }
    const bool has_tag = state.named == path && state.folder == state.named / state.tag;
    const bool is_one_of_folder = !state.is_file() && !state.model.empty();
    all.push_back({state.named, has_tag ? state.tag : "",
                   is_one_of_folder ? state.model : of_one.in_files, name, std::move(state)});
  }
  return all;
}

}  // namespace

std::vector<NamedCheckpoint> all_checkpoints(const fs::path& path, const std::string& model) {
  return named(path, states_below(path, model));
}

std::vector<NamedCheckpoint> all_ages(const fs::path& path, const std::string& model) {
  StatesOfModel of_one = states_below(path, model);
  of_one.states = sorted_by_age(path, std::move(of_one.states));
  return named(path, std::move(of_one));
}

}  // namespace dsckpt
