#include <fcntl.h>
#include <sys/stat.h>

#include <algorithm>
#include <iostream>
#include <nlohmann/json.hpp>
#include <system_error>

#include "base/text.h"
#include "ckpt_pack/keep/keeper.h"
#include "cli/messages.h"
#include "cli/progress_display.h"
#include "dsckpt/error.h"
#include "io/far_files.h"
#include "io/folder.h"
#include "io/text_file.h"
#include "job/run_job.h"

namespace dsckpt::pack {
namespace fs = std::filesystem;
namespace {

struct Kept {
  std::string folder;
  Record record;
};

// NAME was kept before NAME.2.
bool is_earlier(const Kept& a, const Kept& b) {
  if (a.folder.size() != b.folder.size()) return a.folder.size() < b.folder.size();
  return a.folder < b.folder;
}

constexpr const char* kNewest = "newest";

// Returns the checkpoint with that step or name, in the run or in the place. The last of several is
// taken.
Kept find_kept(const KeptPlace& place, const std::string& wanted) {
  std::vector<Kept> found;
  std::vector<std::string> lines;
  std::optional<int64_t> newest;
  for (const auto& [folder, record] : place.records()) {
    if (record.step) newest = std::max(newest.value_or(*record.step), *record.step);
  }
  if (wanted == kNewest && newest) return find_kept(place, std::to_string(*newest));
  for (const auto& [folder, record] : place.records()) {
    const std::string step = record.step ? std::to_string(*record.step) : "";
    lines.push_back(folder + (step.empty() ? "" : ", step " + step));
    if (folder == wanted) return {folder, record};
    if (record.name == wanted || step == wanted) found.push_back({folder, record});
  }
  if (found.empty()) {
    throw UsageError(shown_path(place.path()) + ": has no checkpoint '" + wanted + "'" +
                     (lines.empty() ? "" : "; it has" + listed(lines)));
  }
  std::sort(found.begin(), found.end(), is_earlier);
  for (const Kept& each : found) {
    if (each.record.name != found.front().record.name) {
      throw UsageError(shown_path(place.path()) + ": has several checkpoints of step " + wanted)
          .with_hint("give the name of one: " + found.front().folder + ", " + each.folder);
    }
  }
  return found.back();
}

// Sets the times of the run's files, so that the place's record still proves this checkpoint safe.
void set_times(const Folder& folder, const Record& record) {
  for (const RunFile& file : record.files) {
    const fs::path path(file.path);
    const timespec time{file.modified / 1'000'000'000, file.modified % 1'000'000'000};
    const timespec times[2] = {time, time};
    const Folder in = folder.below(path.parent_path());
    ::utimensat(in.descriptor(), path.filename().c_str(), times, AT_SYMLINK_NOFOLLOW);
  }
}

// Restores files beside the tag's folder that do not exist. `latest` is restored too unless it
// names an existing folder.
void restore_beside(const fs::path& from, const fs::path& to, const Record& record,
                    const RunOptions& options, Progress& progress) {
  const Folder folder = Folder::at(to);
  KeptBeside beside;
  for (const JobFile& file : record.outputs) {
    const fs::path path(file.path);
    if (path.has_parent_path() || path == "latest" || folder.has(path)) continue;
    beside.files.push_back({from / path, file.path});
  }
  std::error_code failed;
  const RunFolder run(to);
  std::string named;
  try {
    named = run.latest();
  } catch (const CorruptError&) {
  }
  if (!beside.files.empty()) {
    dsckpt::run(plan_beside(beside), to, options, progress);
  }
  if (named.empty() || !fs::is_directory(to / named, failed)) {
    replace_text_file(folder, "latest", record.name, true);
  }
}

}  // namespace

int restore(const CLI::App& app, const cli::Common& common, const KeepArguments& args,
            Progress& progress) {
  KeptPlace place(args.to, args.run, false);
  place.open_to_read();
  const Kept kept = find_kept(place, args.restore);
  const Record& record = kept.record;
  const fs::path to = fs::absolute(args.into.empty() ? args.run : args.into).lexically_normal();
  const fs::path from = place.path() / kept.folder;
  const fs::path output = to / record.name;
  const Job job = cli::while_shown(progress, common, [&] {
    return plan_kept(record.is_tag ? from / record.name : from, "", {}, false, &progress);
  });
  std::map<std::string, uint64_t> planned;
  for (const JobFile& file : job.files()) planned.emplace(file.path, file.bytes);
  for (const JobFile& file : record.outputs) {
    const fs::path path(file.path);
    if (record.is_tag && !path.has_parent_path()) continue;
    const std::string in_job =
        record.is_tag ? path.lexically_relative(record.name).generic_string() : file.path;
    const auto found = planned.find(in_job);
    if (found != planned.end() && found->second == file.bytes) continue;
    throw InconsistentError({.file = shown_path(from / path)}, "is not there as it was kept");
  }
  const RunOptions options{.threads = common.threads,
                           .force = args.force,
                           .durable = true,
                           .verify_output = true,
                           .limit_rate = args.limit_rate};
  RunStats stats;
  {
    const cli::ProgressDisplay display(progress, common);
    const cli::Writing writing;
    stats = dsckpt::run(job, output, options, progress);
    if (record.how == "copied" || record.how == "packed") set_times(Folder::at(output), record);
    if (record.is_tag) restore_beside(from, to, record, options, progress);
    if (args.into.empty()) place.adopt();
  }
  for (const std::string& note : stats.notes) cli::note(app, common, note);
  nlohmann::json data = {{"event", "restored"},       {"name", record.name},
                         {"output", output.string()}, {"step", nullptr},
                         {"how", record.how},         {"bytes", stats.bytes_written},
                         {"seconds", stats.seconds}};
  if (record.step) data["step"] = *record.step;
  say_event(common,
            record.name + ": restored to " + output.string() + ", " +
                human_bytes(stats.bytes_written) + ", " + human_seconds(stats.seconds),
            std::move(data));
  return cli::kDone;
}

}  // namespace dsckpt::pack
