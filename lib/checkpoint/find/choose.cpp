#include "checkpoint/find/choose.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <iterator>
#include <map>
#include <set>
#include <string_view>
#include <tuple>
#include <utility>

#include "base/text.h"
#include "checkpoint/find/same_files.h"
#include "dsckpt/error.h"

namespace dsckpt {
namespace fs = std::filesystem;
namespace {

// Words that names of ages have, beside numbers.
constexpr std::array kAges{
    "best", "checkpoint", "checkpoints", "ckpt",       "ckpts", "epoch",     "epochs",
    "ep",   "final",      "global",      "globalstep", "iter",  "iteration", "iterations",
    "last", "latest",     "newest",      "save",       "step",  "steps",     "tag"};
// Words that tell neither ages nor models apart: what programs put into names of checkpoints.
constexpr std::array kNeutral{"acc",   "accuracy",  "eval", "f",     "hf",    "loss",  "metric",
                              "model", "ppl",       "save", "saved", "score", "state", "states",
                              "train", "universal", "val",  "valid", "with"};
// accelerate/utils/constants.py MODEL_NAME: several models of a program get numbers.
constexpr std::string_view kAccelerates = "pytorch_model";

template <typename Words>
bool has_word(const Words& words, std::string_view word) {
  return std::find(words.begin(), words.end(), word) != words.end();
}

// Words of numbers that belong to them: "loss0.5". Numbers behind others tell models apart, "run1".
constexpr std::array kMeasures{"acc", "accuracy", "f", "loss", "metric", "ppl", "score"};

// A part of a path: whether it may be an age's name, and what is left of it besides.
struct NameParts {
  bool is_age = false;
  std::string rest = {};   // in small letters
  std::string model = {};  // the same as it is written
};

NameParts parts_of(const std::string& name) {
  NameParts parts;
  if (name.starts_with(kAccelerates)) return {false, name, name};
  const auto is_digit = [&](size_t i) {
    return std::isdigit(static_cast<unsigned char>(name[i])) != 0;
  };
  bool has_digits = false;
  bool has_letters = false;
  for (size_t at = 0; at < name.size();) {
    const auto letter = [&](size_t i) {
      return std::isalpha(static_cast<unsigned char>(name[i])) || (name[i] & 0x80) != 0;
    };
    if (!letter(at)) {
      has_digits = has_digits || is_digit(at);
      ++at;
      continue;
    }
    std::string word;
    const size_t begin = at;
    for (; at < name.size() && letter(at); ++at) {
      word += static_cast<char>(std::tolower(static_cast<unsigned char>(name[at])));
    }
    has_letters = true;
    if (has_word(kAges, word)) {
      parts.is_age = true;
      continue;
    }
    const size_t end = at;
    while (!has_word(kMeasures, word) && at < name.size() && is_digit(at)) word += name[at++];
    if (has_word(kNeutral, word)) continue;
    has_digits = has_digits || at > end;
    parts.rest += (parts.rest.empty() ? "" : " ") + word;
    parts.model += (parts.model.empty() ? "" : "_") + name.substr(begin, at - begin);
  }
  parts.is_age = parts.is_age || (has_digits && !has_letters);
  return parts;
}

std::vector<std::string> components(const fs::path& path) {
  std::vector<std::string> all;
  for (const fs::path& each : path) all.push_back(each.string());
  return all;
}

// The state's path below `path`; for a tag of `path` itself, the tag.
fs::path path_of(const fs::path& path, const SavedState& state) {
  return state.is_latest && state.named == path ? fs::path(state.tag) : state.below(path);
}

// The same without the ending of a file.
fs::path name_below(const fs::path& path, const SavedState& state) {
  fs::path name = path_of(path, state);
  constexpr std::array kEndings{".tar", ".ckpt", ".pt", ".pth", ".bin"};
  for (const char* ending : kEndings) {
    if (state.is_file() && name.extension() == ending) name.replace_extension();
  }
  return name;
}

// The model that a part of a path names.
std::string model_of(const std::string& part) {
  const NameParts parts = parts_of(part);
  return parts.is_age && !parts.model.empty() ? parts.model : part;
}

// True if both may be of one model, as far as the names tell.
bool may_be_ages(const fs::path& a, const fs::path& b) {
  const std::vector<std::string> of_a = components(a);
  const std::vector<std::string> of_b = components(b);
  if (of_a.size() != of_b.size()) return false;
  for (size_t i = 0; i < of_a.size(); ++i) {
    if (of_a[i] == of_b[i]) continue;
    const NameParts parts_a = parts_of(of_a[i]);
    const NameParts parts_b = parts_of(of_b[i]);
    if (!parts_a.is_age || !parts_b.is_age || parts_a.rest != parts_b.rest) return false;
  }
  return true;
}

bool has_same_params(const SavedState& a, const SavedState& b) {
  return std::equal(a.params.begin(), a.params.end(), b.params.begin(), b.params.end(),
                    [](const auto& one, const auto& other) {
                      const bool told = !one.second.empty() && !other.second.empty();
                      return one.first == other.first && (!told || one.second == other.second);
                    });
}

// The model that is meant among several in a folder, by the names of its files there.
fs::path model_in_folder(const SavedState& state) {
  const fs::path& metadata = state.dcp_metadata.empty() ? fs::path() : state.dcp_metadata.front();
  return metadata.lexically_relative(state.folder) / state.rank_name.first / state.model;
}

bool is_same_state(const SavedState& a, const SavedState& b) {
  return a.damage.empty() && b.damage.empty() && a.kind == b.kind && a.step == b.step &&
         model_in_folder(a) == model_in_folder(b) && has_same_params(a, b);
}

// A Universal Checkpoint of a state whose shards are there.
bool is_other_form(const SavedState& universal, const SavedState& zero) {
  return universal.kind == StateKind::universal && zero.kind == StateKind::zero && universal.step &&
         universal.step == zero.step;
}

InconsistentError refusal(const fs::path& path, const std::vector<SavedState>& states,
                          const std::string& why) {
  constexpr size_t kMostShown = 24;
  std::vector<std::string> lines = lines_of(path, states);
  if (lines.size() > kMostShown) {
    const std::string more = "and " + std::to_string(lines.size() - kMostShown) + " more";
    lines.resize(kMostShown);
    lines.push_back(more);
  }
  const std::string held = "holds " + counted(states.size(), "checkpoint") + ", " + why + ":";
  InconsistentError error({.file = path.string()}, held + listed(lines));
  std::set<std::string> models;
  for (const SavedState& state : states) models.insert(model_name(path, state));
  // Ages and files have names, too.
  const bool have_names = std::none_of(states.begin(), states.end(), [&](const SavedState& state) {
    const NameParts parts = parts_of(model_name(path, state));
    const bool is_files = !state.model.empty() && state.model == state.file.filename();
    return is_files || (parts.is_age && parts.rest.empty());
  });
  const auto whole = std::find_if(states.rbegin(), states.rend(),
                                  [](const SavedState& state) { return state.damage.empty(); });
  const SavedState& last = whole == states.rend() ? states.back() : *whole;
  const auto is_beside = [&](const SavedState& state) { return state.folder == last.folder; };
  const bool is_alone = std::count_if(states.begin(), states.end(), is_beside) == 1;
  const bool by_file = last.is_file() || (!is_alone && !last.file.empty());
  const fs::path one = by_file ? last.file : path / last.below(path);
  std::string hint = std::string("give the ") + (by_file ? "file" : "folder") +
                     " of one: " + shell_word(one.lexically_normal().string());
  if (have_names && models.size() > 1) {
    hint = "--model " + shell_word(*models.begin()) + " reads the newest of one of them";
  }
  return std::move(error).with_hint(hint);
}

// Without copies of others: links to them, and folders of which all files are files of theirs.
std::vector<SavedState> without_copies(std::vector<SavedState> states) {
  std::vector<SavedState> kept;
  std::stable_sort(states.begin(), states.end(), [](const SavedState& a, const SavedState& b) {
    return a.is_latest && !b.is_latest;
  });
  for (SavedState& state : states) {
    bool is_copy = false;
    for (SavedState& other : kept) {
      if (!is_same_state(state, other)) continue;
      if (state.is_file()) {
        is_copy = have_same_values(state.named, other.named);
      } else if (are_copies_of_files(state.folder, other.folder)) {
        is_copy = true;
      } else if (are_copies_of_files(other.folder, state.folder)) {  // `other` lacks some
        std::swap(state, other);
        is_copy = true;
      }
      if (is_copy) break;
    }
    if (!is_copy) kept.push_back(std::move(state));
  }
  std::vector<SavedState> without_forms;
  for (const SavedState& state : kept) {
    const bool is_form = std::any_of(kept.begin(), kept.end(), [&](const SavedState& zero) {
      return is_other_form(state, zero);
    });
    if (!is_form) without_forms.push_back(state);
  }
  return without_forms;
}

// Throws unless they are ages of one model, and sorts them, the oldest first. `all` are listed.
void sort_ages(const fs::path& path, std::vector<SavedState>& states,
               const std::vector<SavedState>& all) {
  const auto by_path = [&](const SavedState& a, const SavedState& b) {
    return a.below(path) < b.below(path);
  };
  std::sort(states.begin(), states.end(), by_path);
  for (size_t i = 1; i < states.size(); ++i) {
    const SavedState& a = states[i - 1];
    const SavedState& b = states[i];
    if (a.kind != b.kind) throw refusal(path, all, "of several kinds");
    if (!may_be_ages(name_below(path, a), name_below(path, b)) || !has_same_params(a, b)) {
      throw refusal(path, all, "which may be several models");
    }
  }
  for (const SavedState& state : states) {
    if (!state.step) throw refusal(path, all, "not all of which tell their step");
  }
  std::sort(states.begin(), states.end(), [](const SavedState& a, const SavedState& b) {
    return std::tuple(*a.step, a.own()) < std::tuple(*b.step, b.own());
  });
  const auto twice =
      std::adjacent_find(states.begin(), states.end(),
                         [](const SavedState& a, const SavedState& b) { return a.step == b.step; });
  if (twice != states.end()) throw refusal(path, all, "some of the same step");
}

// The tag of `latest`, unless another tag beside it is another model of the same step.
ChosenState choose_latest(const fs::path& path, const std::vector<SavedState>& states,
                          const SavedState& latest) {
  if (!latest.damage.empty()) return {latest};
  std::vector<SavedState> rivals{latest};
  for (const SavedState& other : states) {
    if (other.folder == latest.folder && other.kind == latest.kind &&
        other.dcp_metadata == latest.dcp_metadata) {
      continue;
    }
    if (other.folder != latest.folder) {
      if (!other.damage.empty() || other.kind != latest.kind) continue;
      if (may_be_ages(other.folder.lexically_relative(path),
                      latest.folder.lexically_relative(path))) {
        continue;
      }
      const bool is_other_model = !has_same_params(other, latest);
      const bool is_of_step = other.step && other.step == latest.step;
      if (!is_other_model && !is_of_step) continue;
      if (!is_other_model && are_copies_of_files(other.folder, latest.folder)) continue;
    }
    rivals.push_back(other);
  }
  if (rivals.size() > 1) throw refusal(path, rivals, "which may be several models");
  return {latest};
}

const SavedState* latest_of(const fs::path& path, const std::vector<SavedState>& states) {
  const auto found = std::find_if(states.begin(), states.end(), [&](const SavedState& state) {
    return state.is_latest && state.named == path;
  });
  return found == states.end() ? nullptr : &*found;
}

}  // namespace

std::string model_name(const fs::path& path, const SavedState& state) {
  const fs::path below = name_below(path, state);
  for (const std::string& part : components(below)) {
    const NameParts parts = parts_of(part);
    if (!parts.is_age || !parts.rest.empty()) return model_of(part);
  }
  return below.string();
}

std::vector<std::string> lines_of(const fs::path& path, const std::vector<SavedState>& states) {
  std::vector<std::array<std::string, 3>> rows;
  size_t width = 0;
  for (const SavedState& state : states) {
    std::string step = state.step ? "step " + std::to_string(*state.step) : "of no known step";
    if (!state.damage.empty()) step = state.damage;
    rows.push_back(
        {path_of(path, state).string(), std::string(to_string(state.kind)), std::move(step)});
    width = std::max(width, rows.back()[0].size());
  }
  std::vector<std::string> lines;
  for (const auto& [name, kind, step] : rows) {
    lines.push_back(printable(name) + std::string(width - name.size() + 2, ' ') + kind + ", " +
                    step);
  }
  return lines;
}

StatesOfModel of_model(Folders& folders, const fs::path& path, std::vector<SavedState> states,
                       const std::string& model) {
  if (model.empty()) return {std::move(states)};
  StatesOfModel found;
  for (const SavedState& state : states) {
    const std::vector<std::string> parts = components(name_below(path, state));
    const bool is_called = std::any_of(parts.begin(), parts.end(), [&](const std::string& part) {
      return part == model || model_of(part) == model;
    });
    if (is_called) found.states.push_back(state);
  }
  if (!found.states.empty()) return found;
  std::copy_if(states.begin(), states.end(), std::back_inserter(found.states),
               [](const SavedState& state) {
                 return state.kind == StateKind::dcp || state.kind == StateKind::rank_files ||
                        state.is_file();
               });
  found.in_files = model;
  if (!found.states.empty()) return found;
  for (SavedState& state : states) look_into(folders, state);
  throw UsageError("--model: no checkpoint in " + path.string() + " is called '" + model +
                   "':" + listed(lines_of(path, states)));
}

std::vector<SavedState> without_older_tags(const fs::path& path, std::vector<SavedState> states) {
  std::map<fs::path, fs::path> latest;  // of folders below `path`, the one that is named
  for (const SavedState& state : states) {
    if (state.is_latest && state.named != path) latest.emplace(state.named, state.folder);
  }
  std::erase_if(states, [&](const SavedState& state) {
    if (state.is_latest) return false;
    const auto found = latest.find(state.folder.parent_path());
    return found != latest.end() && may_be_ages(state.folder.lexically_relative(path),
                                                found->second.lexically_relative(path));
  });
  return states;
}

bool is_told_by_names(const fs::path& path, const std::vector<SavedState>& states) {
  if (states.size() < 2) return true;
  const SavedState* latest = latest_of(path, states);
  if (latest == nullptr) return false;
  return std::all_of(states.begin(), states.end(), [&](const SavedState& other) {
    if (other.folder == latest->folder) return &other == latest;
    return may_be_ages(other.folder.lexically_relative(path),
                       latest->folder.lexically_relative(path));
  });
}

std::vector<SavedState> sorted_by_age(const fs::path& path, std::vector<SavedState> states) {
  const std::vector<SavedState> all = states;
  std::vector<SavedState> whole = without_copies(std::move(states));
  const auto damaged = std::stable_partition(
      whole.begin(), whole.end(), [](const SavedState& state) { return state.damage.empty(); });
  std::vector<SavedState> sorted(std::make_move_iterator(damaged),
                                 std::make_move_iterator(whole.end()));
  whole.erase(damaged, whole.end());
  if (whole.size() > 1) sort_ages(path, whole, all);
  sorted.insert(sorted.end(), std::make_move_iterator(whole.begin()),
                std::make_move_iterator(whole.end()));
  return sorted;
}

ChosenState choose(const fs::path& path, std::vector<SavedState> states, const std::string& model) {
  if (const SavedState* latest = latest_of(path, states)) {
    return choose_latest(path, states, *latest);
  }
  const auto name = [&](const SavedState& state) { return state.below(path).string(); };
  const std::string there = (model.empty() ? "" : " of " + model) + " in " + path.string();
  if (states.size() == 1) {
    ChosenState choice{std::move(states.front())};
    if (choice.state.named != path && (choice.state.folder != path || choice.state.is_file())) {
      choice.note = "reading " + name(choice.state) + ", the only checkpoint" + there;
    }
    return choice;
  }
  std::vector<SavedState> sorted = sorted_by_age(path, states);
  ChosenState choice{std::move(sorted.back())};
  sorted.pop_back();
  if (!choice.state.damage.empty()) throw refusal(path, states, "none of which can be read");
  const auto whole_name = [&](const SavedState& state) { return (path / name(state)).string(); };
  choice.note = "reading " + name(choice.state) + ", the newest of " +
                counted(states.size(), "checkpoint") + there;
  for (SavedState& state : sorted) {
    auto& kept = state.damage.empty() ? choice.older : choice.damaged;
    kept.insert(kept.begin(), std::move(state));
  }
  if (choice.damaged.empty()) return choice;
  choice.note = "reading " + whole_name(choice.state) + ", the newest that is whole";
  for (const SavedState& state : choice.damaged) {
    choice.note += "; of " + whole_name(state) + ": " + state.damage;
  }
  return choice;
}

}  // namespace dsckpt
