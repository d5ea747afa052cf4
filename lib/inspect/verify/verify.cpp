#include "inspect/verify/verify.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>
#include <system_error>
#include <tuple>

#include "checkpoint/find/folders.h"
#include "checkpoint/find/rank_name.h"
#include "checkpoint/find/tag_folder.h"
#include "checkpoint/weights.h"
#include "exec/workers.h"
#include "inspect/contents.h"
#include "inspect/verify/manifest.h"
#include "inspect/verify/verification.h"

namespace dsckpt {
namespace fs = std::filesystem;
namespace {

constexpr std::array<const char*, kCheckCount> kNames = {
    "missing", "extra",   "unreadable", "crc",       "wrong-rank", "step",  "layout",
    "shape",   "replica", "rounding",   "nonfinite", "latest",     "index", "manifest"};

// The forms of a path that a step is for.
enum Form : unsigned {
  kZero = 1,
  kUniversal = 2,
  kWeights = 4,
  kDcp = 8,
  kStateDicts = 16,  // one rank's in each file, or a whole training's in one
  kCheckpoint = 3,
  kOfArchives = 23,
  kAll = 31
};

// A row of the table of steps: the forms it is for, and the checks that it makes.
struct Step {
  void (*run)(Verification&);
  unsigned forms;
  std::vector<Check> checks;
  bool reads_elements = false;  // itself, and a plan of passes does not need its findings
};

void check_finite_if_asked(Verification& v) {
  if (v.options.finite) return check_finite(v);
  v.skip(Check::nonfinite, "not asked for (--finite)");
}

void check_manifest_if_given(Verification& v) {
  const bool given = !v.options.manifest.empty();
  if (given || !v.options.new_manifest.empty()) v.report.manifest = make_manifest(v);
  if (given) return check_manifest(v);
  v.skip(Check::manifest, "none was given (--manifest)");
}

const std::vector<Step>& steps() {
  using enum Check;
  static const std::vector<Step> kSteps = {
      {open_files, kOfArchives, {unreadable}},
      {open_dcp_files, kDcp, {missing, unreadable}},
      {check_records, kAll, {crc}},
      {check_saved_names, kCheckpoint, {wrong_rank}},
      {check_tensors_in_files, kOfArchives, {layout}},
      {check_weights, kWeights, {missing, index}},
      {check_ranks, kCheckpoint, {missing, extra, latest}},
      {check_layer_files, kZero, {missing, extra}},
      {check_universal, kUniversal, {missing, extra, step, shape}},
      {check_model_files_agree, kCheckpoint, {step, shape}},
      {check_optim_files_agree, kZero, {step, replica}},
      {check_module_shapes, kCheckpoint, {shape}},
      {check_flat_groups, kZero, {layout}},
      {check_padding, kZero, {layout}},
      {check_swap_files, kZero, {missing, extra, layout}},
      {open_checkpoint, kCheckpoint | kDcp | kStateDicts, {layout}},
      {check_rounding, kCheckpoint, {rounding}},
      {check_module_replicas, kZero, {replica}, true},
      {check_same_tensors, kCheckpoint, {replica}, true},
      {check_finite_if_asked, kAll, {nonfinite}},
      {check_manifest_if_given, kAll, {manifest}},
  };
  return kSteps;
}

// Returns the folder to check if `latest` is wrong: the only one with shards.
std::optional<std::string> only_tag(const fs::path& path) {
  const std::vector<fs::path> tags = other_tags(path, "");
  if (tags.size() != 1) return std::nullopt;
  return tags.front().filename().string();
}

FindOptions find_options(const Verification& v, std::string tag) {
  return {.tag = std::move(tag),
          .roots = v.options.roots,
          .model = v.options.model,
          .folders = v.folders};
}

// Returns false if the path has only a wrong `latest`.
bool find_folder(Verification& v, const fs::path& path) {
  try {
    v.folder = find_tag_folder(path, find_options(v, v.options.tag));
    return true;
  } catch (const Error& error) {
    // The model's file of a universal checkpoint may be missing.
    const fs::path folder = error.where().file;
    std::error_code failed;
    if (!folder.empty() && fs::is_directory(folder / "zero", failed)) {
      v.folder = {folder, folder.filename().string(), {}};
      return true;
    }
    const std::string named = folder.filename().string();
    const bool of_latest = named == "latest" || named == "latest_universal";
    if (!v.options.tag.empty() || !of_latest || error.kind() == ErrorKind::io) throw;
    v.add({.check = Check::latest, .message = error.message(), .file = named});
  }
  const auto tag = only_tag(path);
  if (!tag) return false;
  v.folder = find_tag_folder(path, find_options(v, *tag));
  return true;
}

void add_file(Verification& v, fs::path path, std::optional<ShardName> name) {
  CheckedFile& file = v.files.emplace_back();
  file.path = std::move(path);
  file.name = name;
}

// Adds all files below zero/ of a universal checkpoint, by path.
void add_universal_files(Verification& v) {
  std::vector<fs::path> paths;
  std::error_code failed;
  fs::recursive_directory_iterator it(v.folder.path / "zero", failed);
  for (const fs::recursive_directory_iterator end; !failed && it != end; it.increment(failed)) {
    std::error_code ignored;
    fs::path path = content_path(it->path());
    if (path.extension() == ".pt" && !it->is_directory(ignored)) paths.push_back(std::move(path));
  }
  std::sort(paths.begin(), paths.end());
  const auto twice = std::adjacent_find(paths.begin(), paths.end());
  if (twice != paths.end()) refuse_two_forms(*twice);
  for (fs::path& path : paths) {
    add_file(v, std::move(path), ShardName{.kind = ShardName::Kind::universal});
  }
}

// Adds the files that the index names, or all files if it is unreadable. The optimizer's files
// beside them are added too.
void add_weights_files(Verification& v, const fs::path& folder) {
  FoundWeights found = find_weights(*v.folders, folder, v.model);
  std::vector<fs::path> paths = std::move(found.files);
  if (!found.note.empty()) v.report.choice = found.note;
  if (paths.size() == 1 && is_weights_index(paths.front())) {
    const fs::path index = paths.front();
    paths.clear();
    std::set<std::string> names;
    try {
      for (const auto& [tensor, file] : read_weights_index(index).files) names.insert(file);
    } catch (const Error&) {
      for (const fs::directory_entry& entry : fs::directory_iterator(folder)) {
        const fs::path name = content_path(entry.path()).filename();
        const fs::path extension = name.extension();
        if (extension == ".safetensors" || extension == ".bin") names.insert(name.string());
      }
    }
    for (const std::string& name : names) {
      if (is_stored(folder / name)) paths.push_back(folder / name);
    }
  }
  const std::string stem = paths.empty() ? "" : weights_stem(paths.front());
  for (const SavedState& state : states_in(*v.folders, folder)) {
    const bool is_own =
        state.kind == StateKind::training && weights_stem(state.training.weights) == stem;
    if (is_own) paths.push_back(state.training.optimizer);
  }
  for (fs::path& path : paths) {
    refuse_two_forms(path);
    add_file(v, std::move(path), std::nullopt);
  }
}

// Adds all ranks' files, also those of optimizers and extra states.
void add_rank_files(Verification& v) {
  std::vector<fs::path> folders = v.folder.other_roots;
  folders.insert(folders.begin(), v.folder.path);
  for (const fs::path& folder : folders) {
    for (const fs::path& file : (*v.folders)[folder].files) {
      if (parse_rank_name(file.filename().string())) add_file(v, file, std::nullopt);
    }
  }
}

// Returns whether a file belongs to several ranks' files, which are checked together.
bool is_one_ranks(const fs::path& path) {
  const auto name = parse_rank_name(content_path(path).filename().string());
  return name && (name->ranks || has_rank_tensors(path));
}

// Finds the path's form and its files. Returns 0 if there is nothing to check.
unsigned find_files(Verification& v, const fs::path& path) {
  std::error_code failed;
  if (!is_stored(path)) throw UsageError(path.string() + ": there is no such file");
  v.report.folder = path;
  v.model = v.options.model;
  if (!fs::is_directory(path, failed) && !is_latest(path) && !is_one_ranks(path)) {
    if (!v.options.roots.empty()) throw no_roots_of_weights(path);
    v.report.form = "file";
    v.report.folder = path.parent_path();
    add_file(v, path, std::nullopt);
    return kWeights;
  }
  if (holds_only_weights(*v.folders, path, v.options.tag, Beside::shards)) {
    if (!v.options.roots.empty()) throw no_roots_of_weights(path);
    v.report.form = "weights";
    add_weights_files(v, path);
    return kWeights;
  }
  v.report.form = "zero";
  if (!find_folder(v, path)) return 0;
  v.report.folder = v.folder.path;
  for (const auto& [folder, damage] : v.folder.damaged) {
    v.add({.check = Check::unreadable, .message = damage, .file = folder.string()});
  }
  v.report.choice = v.folder.note;
  v.model = v.folder.model;
  if (v.folder.own() != v.folder.path) {
    v.report.form = "file";
    add_file(v, v.folder.own(), std::nullopt);
    return kWeights;
  }
  if (!v.folder.dcp_metadata.empty()) {
    v.report.form = "dcp";
    return kDcp;
  }
  if (!v.folder.training.weights.empty()) {
    v.report.form = "weights";
    if (!v.folder.has_only_weights()) v.model = weights_stem(v.folder.training.weights);
    add_weights_files(v, v.folder.path);
    return kWeights;
  }
  if (!v.folder.rank_name.first.empty()) {
    v.report.form = "rank-files";
    add_rank_files(v);
    return kStateDicts;
  }
  for (const ShardFile& shard : v.folder.shards) add_file(v, shard.path, shard.name);
  if (v.folder.has(ShardName::Kind::optim_states) ||
      !fs::is_directory(v.folder.path / "zero", failed)) {
    return kZero;
  }
  refuse_other_roots(v.folder);
  v.report.form = "universal";
  add_universal_files(v);
  return kUniversal;
}

// Sorts by check, then by file. Two checks may report the same defect, which is kept once.
void sort_findings(Verification& v) {
  std::vector<Finding>& findings = v.report.findings;
  std::stable_sort(findings.begin(), findings.end(), [](const Finding& a, const Finding& b) {
    return std::tie(a.check, a.file, a.offset) < std::tie(b.check, b.file, b.offset);
  });
  const auto same = [](const Finding& a, const Finding& b) {
    return std::tie(a.check, a.file, a.offset, a.member, a.tensor, a.state, a.message) ==
           std::tie(b.check, b.file, b.offset, b.member, b.tensor, b.state, b.message);
  };
  findings.erase(std::unique(findings.begin(), findings.end(), same), findings.end());
}

// An error in one file must not stop the other checks.
void report_failed(Verification& v, const Step& step, const Error& error) {
  for (const Check check : step.checks) {
    v.skip(check, "not all of it: " + std::string(error.what()), true);
  }
  if (error.kind() == ErrorKind::unsupported || v.is_reported(error.where().file)) return;
  v.add(error.kind() == ErrorKind::io ? Check::unreadable : Check::layout, error);
}

void run_step(Verification& v, const Step& step) {
  try {
    step.run(v);
  } catch (const Error& error) {
    const bool of_options =
        step.checks.front() == Check::manifest || error.kind() == ErrorKind::usage;
    if (of_options || error.kind() == ErrorKind::interrupted) throw;
    report_failed(v, step, error);
  }
}

void run_steps(Verification& v, const fs::path& path) {
  const unsigned form = find_files(v, path);
  for (const Step& step : steps()) {
    if ((step.forms & form) == 0) continue;
    if (step.reads_elements && v.reading().only_plans()) continue;
    v.stop_if_cancelled();
    for (const Check check : step.checks) {
      CheckDone& entry = v.report.checks[static_cast<size_t>(check)];
      entry.done = entry.done || entry.why.empty();
    }
    run_step(v, step);
  }
  v.report.checks[static_cast<size_t>(Check::latest)].done = (form & kCheckpoint) != 0;
  for (CheckDone& check : v.report.checks) {
    if (!check.done && check.why.empty()) check.why = "has no meaning here";
  }
  sort_findings(v);
  name_touched(v);
}

}  // namespace

const char* to_string(Check check) {
  return kNames[static_cast<size_t>(check)];
}

nlohmann::json verify_json(const VerifyReport& report) {
  using nlohmann::json;
  json findings = json::array();
  for (const Finding& finding : report.findings) {
    json& entry = findings.emplace_back(
        json{{"check", to_string(finding.check)}, {"message", finding.message}});
    if (!finding.file.empty()) entry["file"] = finding.file;
    if (finding.rank) entry["rank"] = {{"dp", finding.rank->dp}, {"mp", finding.rank->mp}};
    if (!finding.member.empty()) entry["member"] = finding.member;
    if (!finding.tensor.empty()) entry["tensor"] = finding.tensor;
    if (!finding.state.empty()) entry["state"] = finding.state;
    if (!finding.tensors.empty()) entry["tensors"] = finding.tensors;
    if (finding.offset) entry["offset"] = *finding.offset;
    if (finding.size) entry["size"] = *finding.size;
  }
  json checks = json::array();
  for (size_t i = 0; i < kCheckCount; ++i) {
    json& entry = checks.emplace_back(json{{"check", kNames[i]}, {"done", report.checks[i].done}});
    if (!report.checks[i].why.empty()) entry["why"] = report.checks[i].why;
  }
  return {{"form", report.form},   {"folder", report.folder.string()},
          {"ok", report.ok()},     {"findings", std::move(findings)},
          {"files", report.files}, {"records", report.records},
          {"bytes", report.bytes}, {"checks", std::move(checks)}};
}

VerifyReport verify(InputFiles& inputs, const fs::path& path, const VerifyOptions& options,
                    Progress& progress) {
  Verification v(inputs, options, progress);
  with_threads(options.threads, [&] { run_steps(v, path); });
  return std::move(v.report);
}

}  // namespace dsckpt
