#include "exec/staged_output.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <set>
#include <string>
#include <system_error>
#include <utility>

#include "base/random.h"
#include "base/text.h"
#include "dsckpt/error.h"
#include "exec/commit.h"
#include "exec/journal.h"
#include "io/file_system.h"
#include "io/folder.h"
#include "io/striping.h"
#include "io/text_file.h"

namespace dsckpt {
namespace fs = std::filesystem;
namespace {

// An fsync is a commit of the file system's journal; more files than this share one.
constexpr size_t kSyncedOneByOne = 16;

std::optional<Folder> folder_if_there(const fs::path& path) {
  try {
    return Folder::at(path);
  } catch (const IoError&) {  // whoever makes it says why it cannot be
    return std::nullopt;
  }
}

// Runs `body`, after which nothing of a commit can be undone.
template <typename Body>
void note_failure(std::vector<std::string>& notes, Body&& body) {
  try {
    body();
  } catch (const IoError& error) {
    notes.push_back(std::string(error.what()) +
                    "; the output is complete, but a loss of power may still undo it");
  }
}

}  // namespace

StagedOutput::StagedOutput(const CopyPlan& plan, fs::path target, StageOptions options)
    : plan_(plan), options_(options), staging_(new Staging{plan, options, std::move(target)}) {}

StagedOutput::~StagedOutput() {
  try {
    give_up();
  } catch (...) {  // an exception is on its way already
  }
}

void StagedOutput::prepare() {
  static_cast<void>(resolved_path(staging_->target));  // whoever has made the links on the way
  goes_on_ = staging_->is_kept() && take_up();
  if (!goes_on_ && options_.only_goes_on) {
    throw UsageError(staging_->target.string() + ": nothing is left to be committed there")
        .with_hint("another process has committed it meanwhile, or it was abandoned");
  }
  if (!goes_on_) commit_ = choose_commit(*staging_);
  commit_->check();
  if (options_.stripe && !goes_on_) check_can_stripe(commit_->place());
  if (!goes_on_) staging_->place = folder_if_there(commit_->place());
  // The resumed folder is alive again.
  if (staging_->place) notes_ = clear_left_overs(*staging_->place);
  if (const auto lack = lack_of_space()) throw *lack;
  if (!goes_on_) make_staging_folder();
  if (options_.check) {
    is_elsewhere_ = true;
    options_.check(*staging_->place);
    is_elsewhere_ = false;
  }
  if (!is_written()) make_folders_of_files();
  files_ = std::make_unique<StagedFiles>(plan_, place());
}

StagingPlace StagedOutput::place() const {
  return {.path = staging_->folder->path(),
          .folder = staging_->folder,
          .files_in = staging_->files_in,
          .attempts_in = staging_->attempts_in,
          .target = staging_->target,
          .packed = options_.packed,
          .direct = options_.direct,
          .write_bytes = options_.write_bytes,
          .durable = options_.durable && !staging_->all_at_once,
          .are_there = goes_on_ || options_.shared};
}

std::string StagedOutput::check() {
  static_cast<void>(resolved_path(staging_->target));
  commit_ = choose_commit(*staging_);
  commit_->check();
  const fs::path there = existing_part(resolved_path(commit_->place()));
  std::error_code failed;
  if (!fs::is_directory(there, failed)) {
    throw IoError({.file = there.string()}, "is not a folder", ENOTDIR);
  }
  if (::faccessat(AT_FDCWD, there.c_str(), W_OK | X_OK, AT_EACCESS) != 0) {
    throw IoError({.file = there.string()}, "cannot write into the folder", errno);
  }
  if (options_.stripe) check_can_stripe(there);
  const auto lack = lack_of_space();
  return lack ? lack->what() : "";
}

// True if the previous run has left something to resume.
bool StagedOutput::take_up() {
  for (const bool whole_folder : {true, false}) {
    const std::optional<Resumable> found = find_resumable(staging_->target, whole_folder);
    if (!found) continue;
    const Folder& folder = found->folder;
    check_free_to_take(folder);
    owner_.emplace(folder);
    staging_->place = found->place;
    staging_->folder = folder;
    if (!has_job(folder)) {
      // Stopped before anything began, or when all was over.
      staging_->is_there = true;
      remove_staging();
      continue;
    }
    check_same_job(folder, *options_.job);
    staging_->written_inode = load_written(folder);
    commit_ = same_commit(*staging_, whole_folder);
    check_run_before(whole_folder);
    set_folder(folder);
    take_files_from_run_before();
    return true;
  }
  return false;
}

// Nobody else may enter the folder; so what is in it stays as it is checked here.
void StagedOutput::check_run_before(bool whole_folder) const {
  const std::string target = without_slash(staging_->target).filename().string();
  const std::optional<struct stat> published =
      whole_folder && is_written() ? staging_->place->look(target) : std::nullopt;
  const bool is_exchanged = published && published->st_ino == *staging_->written_inode;
  for (const std::string& name : staging_->folder->names()) {
    // Replaced files have the form that the user has given them.
    if (name == Staging::kOld || (is_exchanged && name.starts_with(Staging::kFilesPrefix)))
      continue;
    staging_->folder->check_is_ours(name);
  }
}

const Folder* StagedOutput::folder() const {
  return &*staging_->folder;
}

ReadBack StagedOutput::read_back() const {
  return {.folder = staging_->folder,
          .path = [this](OutputId out) { return staging_->staged(out); },
          .shown = [this](OutputId out) { return staging_->final_path(out).string(); }};
}

bool StagedOutput::is_written() const {
  return staging_->written_inode.has_value();
}

// The size of packed files is only known when they are written.
std::optional<IoError> StagedOutput::lack_of_space() const {
  if (is_written()) return std::nullopt;
  uint64_t needed = 0;
  for (OutputId out = 0; out < plan_.outputs().size(); ++out) {
    const uint64_t size = staging_->is_packed(out) ? 0 : plan_.outputs()[out].size;
    const auto there = goes_on_ ? staging_->folder->look(staging_->staged(out)) : std::nullopt;
    const uint64_t taken = there ? static_cast<uint64_t>(there->st_blocks) * 512 : 0;
    needed += size - std::min(size, taken);
  }
  const uint64_t free = free_space(existing_part(staging_->target));
  if (needed <= free) return std::nullopt;
  return IoError(
      {.file = staging_->target.string()},
      "needs " + human_bytes(needed) + ", the file system has " + human_bytes(free) + " left",
      ENOSPC);
}

void StagedOutput::make_staging_folder() {
  const fs::path place = commit_->place();
  if (!staging_->place) staging_->place = Folder::make(place, staging_->made_folders);
  const std::string name =
      staging_->is_kept()
          ? resumable_folder(staging_->target, place != staging_->target).filename().string()
          : std::string(kStagingPrefix) + std::to_string(random_number());
  const Folder folder = staging_->is_kept() ? make_resumable_folder(*staging_->place, name)
                                            : staging_->place->make_own(name);
  owner_.emplace(folder);
  set_folder(folder);
  if (options_.stripe) set_striping(folder, *options_.stripe);
  if (staging_->is_kept()) save_job(folder, *options_.job);
}

void StagedOutput::set_folder(const Folder& folder) {
  staging_->folder = folder;
  staging_->is_there = true;
  // The staging folder is its owner's alone; files that stay are in ordinary folders in it.
  const std::string end = staging_->is_kept() ? "-" + std::to_string(random_number()) : "";
  staging_->files_in = Staging::kFilesPrefix + end;
  staging_->attempts_in = Staging::kAttemptsPrefix + end;
  const bool are_many = plan_.outputs().size() > kSyncedOneByOne;
  if (staging_->is_kept() || (options_.durable && are_many)) staging_->all_at_once.emplace(folder);
}

// There are none if that had published all of them, or had not begun.
void StagedOutput::take_files_from_run_before() {
  const Folder& folder = *staging_->folder;
  int failed = 0;
  bool is_taken = false;
  for (const std::string& name : folder.names()) {
    if (failed != 0) break;
    if (name.starts_with(Staging::kAttemptsPrefix)) failed = folder.remove_all(name);
    if (is_taken || !name.starts_with(Staging::kFilesPrefix)) continue;
    failed = folder.rename(name, folder, staging_->files_in);
    is_taken = true;
  }
  if (failed != 0) {
    throw IoError({.file = folder.path().string()}, "cannot take over the files", failed);
  }
}

void StagedOutput::make_folders_of_files() const {
  std::set<fs::path> parents{staging_->files_in};
  if (options_.packed && place().are_there) parents.insert(staging_->attempts_in);
  for (const PlannedFile& file : plan_.outputs()) {
    fs::path parent = (fs::path(staging_->files_in) / file.path).parent_path();
    for (; !parent.empty() && parents.insert(parent).second; parent = parent.parent_path()) {
    }
  }
  // A folder comes before the folders in it.
  for (const fs::path& parent : parents) {
    const int failed = staging_->folder->make_folder(parent);
    if (failed == 0 || failed == EEXIST) continue;
    throw IoError({.file = (staging_->folder->path() / parent).string()}, "cannot make the folder",
                  failed);
  }
}

void StagedOutput::remove_staging() {
  // On a file server, open files cannot be removed.
  owner_.reset();
  files_.reset();
  if (!std::exchange(staging_->is_there, false)) return;
  const fs::path path = staging_->folder->path();
  const int failed = remove_staging_folder(*staging_->place, *staging_->folder);
  if (failed == 0) return;
  notes_.push_back(path.string() +
                   " cannot be removed: " + std::generic_category().message(failed));
}

void StagedOutput::give_up(bool forever) {
  if (staging_->is_kept() && !forever && !is_elsewhere_ && staging_->is_there &&
      has_job(*staging_->folder)) {
    owner_.reset();
    files_.reset();
    if (!leaves_run_before_) {
      notes_.push_back("completed work is kept in " + staging_->folder->path().string() +
                       ": the same command resumes it");
    }
    staging_->is_there = false;
    staging_->made_folders.clear();
    return;
  }
  remove_staging();
  const std::vector<fs::path> made = std::exchange(staging_->made_folders, {});
  for (auto folder = made.rbegin(); folder != made.rend(); ++folder) ::rmdir(folder->c_str());
}

void StagedOutput::hand_over() {
  owner_->unsign();
  owner_.reset();
  files_.reset();
  staging_->is_there = false;
  staging_->made_folders.clear();
}

const std::vector<fs::path>& StagedOutput::made_folders() const {
  return staging_->made_folders;
}

void StagedOutput::write_at(OutputId out, uint64_t offset, std::span<const std::byte> bytes) {
  files_->write_at(out, offset, bytes);
}

void StagedOutput::finish(OutputId out) {
  files_->finish(out);
}

void StagedOutput::sync() {
  if (staging_->all_at_once) return staging_->all_at_once->sync();
  if (plan_.outputs().size() > kSyncedOneByOne) return FileSystem(*staging_->folder).sync();
  for (OutputId out = 0; out < plan_.outputs().size(); ++out) {
    sync_file(*staging_->folder, staging_->staged(out));
  }
}

fs::path StagedOutput::staged_path(OutputId out) const {
  return staging_->folder->path() / staging_->staged(out);
}

fs::path StagedOutput::final_path(OutputId out) const {
  return staging_->final_path(out);
}

void StagedOutput::commit(const Pointer& pointer, const CommitHelp& help) {
  if (help.read_back) {
    sync();
    help.read_back(0, static_cast<OutputId>(plan_.outputs().size()));
  }
  if (staging_->all_at_once) staging_->all_at_once->sync();
  if (staging_->is_kept() && !is_written()) {
    const std::optional<struct stat> files = staging_->folder->look(staging_->files_in);
    if (!files) {
      throw IoError({.file = (staging_->folder->path() / staging_->files_in).string()},
                    "cannot stat", errno);
    }
    save_written(*staging_->folder, files->st_ino);
    staging_->written_inode = files->st_ino;
  }
  std::optional<TextFile> text;
  if (!pointer.file.empty()) {
    text.emplace(pointer.file, pointer.text, options_.durable, staging_->folder);
  }
  try {
    commit_->publish();
    if (text) text->publish();
  } catch (const Error& error) {
    take_back(error);
  } catch (const std::exception& error) {  // memory, mostly
    take_back(IoError({.file = staging_->target.string()}, error.what(), 0));
  }
  note_failure(notes_, [&] { commit_->sync_published(); });
  if (staging_->is_kept()) note_failure(notes_, [&] { note_committed(); });
  // The new names reach the disk before the folder that could restore them is removed.
  if (staging_->is_kept()) note_failure(notes_, [&] { staging_->all_at_once->sync(); });
  if (text && options_.durable) note_failure(notes_, [&] { text->sync_published(); });
  staging_->made_folders.clear();
  remove_staging();
}

void StagedOutput::note_committed() {
  const bool is_beside = commit_->place() != staging_->target;
  const int failed =
      note_commit(is_beside ? staging_->place->below(without_slash(staging_->target).filename())
                            : *staging_->place);
  if (failed == 0 || failed == ENOTSUP) return;
  notes_.push_back(staging_->target.string() + ": that it is committed cannot be noted: " +
                   std::generic_category().message(failed) +
                   "; steps that are called again say that nothing is planned");
}

void StagedOutput::take_back(const Error& error) {
  const std::vector<std::string> problems = commit_->take_back();
  if (problems.empty()) error.raise();
  // The files that are kept there are the user's.
  owner_.reset();
  staging_->is_there = false;
  staging_->made_folders.clear();
  std::string text = error.message() + "; not everything could be put back";
  for (const std::string& problem : problems) text += "\n" + problem;
  Error(error, text).raise();
}

}  // namespace dsckpt
