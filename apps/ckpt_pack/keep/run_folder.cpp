#include "ckpt_pack/keep/run_folder.h"

#include <algorithm>
#include <chrono>
#include <nlohmann/json.hpp>
#include <system_error>
#include <utility>

#include "base/bytes.h"
#include "base/file_time.h"
#include "base/json.h"
#include "base/text.h"
#include "checkpoint/find/folders.h"
#include "dsckpt/error.h"
#include "io/input_file.h"
#include "job/neighbours.h"

namespace dsckpt::pack {
namespace fs = std::filesystem;
namespace {

constexpr const char* kTrainerState = "trainer_state.json";
// transformers trainer.py: older versions save under this name, and rename at the end.
constexpr std::string_view kUnfinishedFront = "tmp-";
constexpr std::string_view kTrainersFront = "checkpoint-";

bool is_native(const SavedState& state) {
  return state.kind == StateKind::zero;
}

// Adds all files below `folder`, which is `name` in the checkpoint. Returns false if a file
// vanishes.
bool add_files(const fs::path& folder, const fs::path& name, RunCheckpoint& to) {
  std::error_code failed;
  struct stat about {};
  if (::lstat(folder.c_str(), &about) != 0) return false;
  to.changed = std::max(to.changed, modified_ns(about));
  fs::directory_iterator it(folder, failed);
  for (const fs::directory_iterator end; !failed && it != end; it.increment(failed)) {
    const fs::path path = name / it->path().filename();
    if (it->path().filename().native().starts_with(kKeepPrefix)) continue;
    if (::lstat(it->path().c_str(), &about) != 0) return false;
    if (S_ISDIR(about.st_mode)) {
      if (!add_files(it->path(), path, to)) return false;
      continue;
    }
    to.changed = std::max(to.changed, modified_ns(about));
    if (S_ISREG(about.st_mode)) {
      to.files.push_back(
          {path.generic_string(), static_cast<uint64_t>(about.st_size), modified_ns(about)});
    } else {
      to.others.push_back(path.generic_string());
    }
  }
  return !failed;
}

// Returns nullopt if the folder is not a checkpoint.
std::optional<RunCheckpoint> checkpoint_at(const fs::path& folder) {
  try {
    Folders folders;
    std::vector<SavedState> states = states_in(folders, folder);
    const bool is_tag = std::any_of(states.begin(), states.end(), is_native);
    if (states.empty()) states = find_states(folders, folder);
    // Universal checkpoints and weights are converted, not saved by the training. A file that is
    // a whole training has no folder of its own.
    std::erase_if(states, [](const SavedState& s) {
      return s.kind == StateKind::universal || s.kind == StateKind::weights || s.is_file();
    });
    if (states.empty()) return std::nullopt;
    std::optional<RunCheckpoint> found = RunFolder::files_in(folder);
    if (!found) return std::nullopt;
    found->is_tag = is_tag;
    found->states = std::move(states);
    return found;
  } catch (const IoError&) {  // the training is removing it
    return std::nullopt;
  }
}

nlohmann::json json_in(const fs::path& path) {
  constexpr uint64_t kMost = uint64_t{256} << 20;
  const InputFile file(path);
  if (file.size() > kMost) return nullptr;
  std::vector<std::byte> bytes(file.size());
  file.read_at(0, bytes);
  nlohmann::json data = parse_json(as_text(bytes));
  return data.is_discarded() ? nlohmann::json() : data;
}

}  // namespace

bool RunCheckpoint::is_within(const std::vector<RunFile>& all) const {
  return others.empty() && std::all_of(files.begin(), files.end(), [&](const RunFile& file) {
           return std::find(all.begin(), all.end(), file) != all.end();
         });
}

int64_t now_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::system_clock::now().time_since_epoch())
      .count();
}

std::optional<RunCheckpoint> RunFolder::files_in(const fs::path& folder) {
  RunCheckpoint found{.name = folder.filename().string()};
  if (!add_files(folder, "", found)) return std::nullopt;
  std::sort(found.files.begin(), found.files.end(),
            [](const RunFile& a, const RunFile& b) { return a.path < b.path; });
  std::sort(found.others.begin(), found.others.end());
  return found;
}

std::vector<RunCheckpoint> RunFolder::list() const {
  std::vector<RunCheckpoint> all;
  std::error_code failed;
  fs::directory_iterator it(path_, failed);
  for (const fs::directory_iterator end; !failed && it != end; it.increment(failed)) {
    if (auto found = look(it->path().filename().string())) all.push_back(*std::move(found));
  }
  if (failed) throw cannot_list(path_, failed);
  std::sort(all.begin(), all.end(),
            [](const RunCheckpoint& a, const RunCheckpoint& b) { return a.name < b.name; });
  return all;
}

std::optional<RunCheckpoint> RunFolder::look(const std::string& name) const {
  if (name.starts_with(".") || name.starts_with(kUnfinishedFront)) return std::nullopt;
  if (name.find('\n') != name.npos) return std::nullopt;
  std::error_code failed;
  if (fs::symlink_status(path_ / name, failed).type() != fs::file_type::directory) {
    return std::nullopt;
  }
  return checkpoint_at(path_ / name);
}

std::string RunFolder::latest() const {
  const fs::path file = path_ / "latest";
  std::error_code failed;
  if (!fs::exists(file, failed)) return "";
  return tag_named_by(file);
}

std::optional<int64_t> RunFolder::step_of(const RunCheckpoint& checkpoint) const {
  Folders folders;
  std::optional<int64_t> step;
  for (SavedState state : checkpoint.states) {
    look_into(folders, state);
    if (state.step) step = std::max(step.value_or(*state.step), *state.step);
  }
  return step;
}

std::string RunFolder::unfinished(const RunCheckpoint& checkpoint,
                                  const std::vector<RunCheckpoint>& all) const {
  if (checkpoint.is_tag) {
    const std::string named = latest();
    // With save_latest=False there is no file that is written last.
    if (named.empty() || named == checkpoint.name) return "";
    const auto newest = std::find_if(all.begin(), all.end(),
                                     [&](const RunCheckpoint& each) { return each.name == named; });
    if (newest == all.end()) return "latest names " + named + ", which is not there";
    const std::optional<int64_t> ours = step_of(checkpoint);
    const std::optional<int64_t> theirs = step_of(*newest);
    if (!ours || !theirs || *theirs >= *ours) return "";
    return "latest still names " + named + ", which is older";
  }
  const auto& states = checkpoint.states;
  const bool has_native = std::any_of(states.begin(), states.end(), is_native);
  if (has_native && std::none_of(states.begin(), states.end(), [](const SavedState& state) {
        return is_native(state) && state.is_latest;
      })) {
    return "it has no latest yet";
  }
  const bool is_trainers = checkpoint.name.starts_with(kTrainersFront) &&
                           is_digits(checkpoint.name.substr(kTrainersFront.size()));
  if (!is_trainers) return "";
  const bool has_state =
      std::any_of(checkpoint.files.begin(), checkpoint.files.end(),
                  [](const RunFile& file) { return file.path == kTrainerState; });
  if (!has_state) return std::string("it has no ") + kTrainerState + " yet";
  if (json_in(path_ / checkpoint.name / kTrainerState).is_object()) return "";
  return std::string(kTrainerState) + " is not whole";
}

std::optional<double> RunFolder::metric_of(const RunCheckpoint& checkpoint,
                                           const std::string& metric) const {
  nlohmann::json state;
  try {
    state = json_in(path_ / checkpoint.name / kTrainerState);
  } catch (const Error&) {
    return std::nullopt;
  }
  const auto is_list = [&] { return state.is_object() && state.contains("log_history"); };
  if (!is_list() || !state["log_history"].is_array()) return std::nullopt;
  const nlohmann::json step = state.value("global_step", nlohmann::json());
  std::optional<double> value;
  for (const nlohmann::json& entry : state["log_history"]) {
    if (!entry.is_object() || entry.value("step", nlohmann::json()) != step) continue;
    for (const std::string& key : {metric, "eval_" + metric}) {
      if (entry.contains(key) && entry[key].is_number()) value = entry[key].get<double>();
    }
  }
  return value;
}

std::vector<fs::path> RunFolder::beside(int64_t nanoseconds) const {
  std::vector<fs::path> files;
  std::error_code failed;
  fs::directory_iterator it(path_, failed);
  for (const fs::directory_iterator end; !failed && it != end; it.increment(failed)) {
    const std::string name = it->path().filename().string();
    struct stat about {};
    if (name.starts_with(".dsckpt-") || is_latest(it->path())) continue;
    if (::lstat(it->path().c_str(), &about) != 0 || !S_ISREG(about.st_mode)) continue;
    if (modified_ns(about) + nanoseconds <= now_ns()) files.push_back(it->path());
  }
  std::sort(files.begin(), files.end());
  return files;
}

}  // namespace dsckpt::pack
