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
#include "io/striping.h"

namespace dsckpt {
namespace fs = std::filesystem;
namespace {

// The folder of the files in the staging folder, or what its name begins with.
constexpr const char* kFiles = "files";
// An fsync is a commit of the file system's journal; more files than this share one.
constexpr size_t kSyncedOneByOne = 16;

// A file that gets its name when it is whole.
class TextFile {
 public:
  // `beside`: a name for the time until then that nobody else uses; "" for a new one.
  TextFile(fs::path path, const std::string& text, bool durable, const std::string& beside = "")
      : path_(std::move(path)),
        staged_(path_.string() + ".dsckpt-" + (beside.empty() ? "XXXXXX" : beside)) {
    const int fd = beside.empty()
                       ? ::mkostemp(staged_.data(), O_CLOEXEC)
                       : ::open(staged_.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    if (fd < 0) throw IoError({.file = path_.string()}, "cannot write", errno);
    mode_t mask = ::umask(0);
    ::umask(mask);
    const bool good =
        ::fchmod(fd, 0666 & ~mask) == 0 && write_all(fd, text) && (!durable || ::fsync(fd) == 0);
    int failed = errno;
    const bool closed = ::close(fd) == 0;
    if (good && closed) return;
    if (good) failed = errno;
    ::unlink(staged_.c_str());
    throw IoError({.file = path_.string()}, "cannot write", failed);
  }
  ~TextFile() {
    if (!published_) ::unlink(staged_.c_str());
  }
  TextFile(const TextFile&) = delete;
  TextFile& operator=(const TextFile&) = delete;

  void publish() {
    if (::rename(staged_.c_str(), path_.c_str()) != 0) {
      throw IoError({.file = path_.string()}, "cannot write", errno);
    }
    published_ = true;
  }
  void sync_published() const { sync_directory(without_slash(path_).parent_path()); }

 private:
  const fs::path path_;
  std::string staged_;
  bool published_ = false;
};

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

void replace_text_file(const fs::path& path, const std::string& text, bool durable) {
  TextFile file(path, text, durable);
  file.publish();
  if (durable) file.sync_published();
}

StagedOutput::StagedOutput(const CopyPlan& plan, fs::path target, StageOptions options)
    : plan_(plan), options_(options), staging_(new Staging{plan, options, std::move(target)}) {}

StagedOutput::~StagedOutput() {
  try {
    give_up();
  } catch (...) {  // an exception is on its way already
  }
}

void StagedOutput::prepare() {
  goes_on_ = staging_->is_kept() && take_up();
  if (!goes_on_) commit_ = choose_commit(*staging_);
  commit_->check();
  if (options_.stripe && !goes_on_) check_can_stripe(commit_->place());
  // The folder that is gone on with is alive again.
  notes_ = clear_left_overs(commit_->place());
  if (const auto lack = lack_of_space()) throw *lack;
  if (!goes_on_) make_staging_folder();
  if (!is_written()) make_folders_of_files();
  files_ = std::make_unique<StagedFiles>(plan_, place());
}

StagingPlace StagedOutput::place() const {
  return {.files_in = staging_->files_in,
          .attempts_in = staging_->attempts_in,
          .target = staging_->target,
          .packed = options_.packed,
          .direct = options_.direct,
          .write_bytes = options_.write_bytes,
          .durable = options_.durable && !staging_->all_at_once,
          .are_there = goes_on_ || options_.shared};
}

std::string StagedOutput::check() {
  commit_ = choose_commit(*staging_);
  commit_->check();
  const fs::path there = existing_part(commit_->place());
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

// True if the run before has left something to go on with.
bool StagedOutput::take_up() {
  for (const bool whole_folder : {true, false}) {
    const fs::path folder = resumable_folder(staging_->target, whole_folder);
    std::error_code ignored;
    if (!fs::is_directory(fs::symlink_status(folder, ignored))) continue;
    const SignedBy owner = owner_of(folder);
    if (owner.state == OwnerState::alive && !owner.who.empty()) {
      throw UsageError(folder.string() + ": is being written by " + owner.who);
    }
    owner_.emplace(folder);
    if (!has_job(folder)) {
      // Stopped before anything began, or when all was over.
      owner_.reset();
      fs::remove_all(folder, ignored);
      continue;
    }
    if (const std::string difference = difference_from_saved(folder, *options_.job);
        !difference.empty()) {
      throw UsageError(folder.string() + ": this command cannot go on with it: " + difference)
          .with_hint("the command that it was begun with goes on; else remove that folder");
    }
    set_folder(folder);
    take_files_from_run_before();
    staging_->written_inode = load_written(folder);
    commit_ = same_commit(*staging_, whole_folder);
    return true;
  }
  return false;
}

const fs::path& StagedOutput::folder() const {
  return staging_->folder;
}

bool StagedOutput::is_written() const {
  return staging_->written_inode.has_value();
}

// How small packed files become is seen when they are written.
std::optional<IoError> StagedOutput::lack_of_space() const {
  if (is_written()) return std::nullopt;
  uint64_t needed = 0;
  for (OutputId out = 0; out < plan_.outputs().size(); ++out) {
    const uint64_t size = staging_->is_packed(out) ? 0 : plan_.outputs()[out].size;
    struct stat there {};
    const bool is_there = goes_on_ && ::stat(staging_->staged(out).c_str(), &there) == 0;
    const uint64_t taken = is_there ? static_cast<uint64_t>(there.st_blocks) * 512 : 0;
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
  make_folders(place, staging_->made_folders);
  std::string name = (place / (std::string(kStagingPrefix) + "XXXXXX")).string();
  bool made = false;
  if (staging_->is_kept()) {
    name = resumable_folder(staging_->target, place != staging_->target).string();
    made = ::mkdir(name.c_str(), 0700) == 0;
  } else {
    made = ::mkdtemp(name.data()) != nullptr;
  }
  if (!made) throw IoError({.file = place.string()}, "cannot write into the folder", errno);
  owner_.emplace(name);
  set_folder(name);
  if (options_.stripe) set_striping(name, *options_.stripe);
  if (staging_->is_kept()) save_job(name, *options_.job);
}

void StagedOutput::set_folder(const fs::path& folder) {
  staging_->folder = folder;
  // The staging folder is its owner's alone; what is to stay is an ordinary one in it.
  staging_->files_in = folder / kFiles;
  if (staging_->is_kept()) staging_->files_in += "-" + std::to_string(random_number());
  staging_->attempts_in = folder / "attempts";
  const bool are_many = plan_.outputs().size() > kSyncedOneByOne;
  if (staging_->is_kept() || (options_.durable && are_many)) staging_->all_at_once.emplace(folder);
}

// There are none if that had published all of them, or had not begun.
void StagedOutput::take_files_from_run_before() {
  const fs::path& files_in = staging_->files_in;
  std::error_code failed;
  fs::remove_all(staging_->attempts_in, failed);
  for (fs::directory_iterator entry(staging_->folder, failed), end; !failed && entry != end;
       entry.increment(failed)) {
    if (!entry->path().filename().string().starts_with(kFiles)) continue;
    fs::rename(entry->path(), files_in, failed);
    break;
  }
  if (failed) {
    throw IoError({.file = staging_->folder.string()}, "cannot take over the files",
                  failed.value());
  }
}

void StagedOutput::make_folders_of_files() const {
  const fs::path& files_in = staging_->files_in;
  std::set<fs::path> parents{files_in};
  if (options_.packed && place().are_there) parents.insert(staging_->attempts_in);
  for (const PlannedFile& file : plan_.outputs()) {
    parents.insert((files_in / file.path).parent_path());
  }
  for (const fs::path& parent : parents) {
    std::error_code failed;
    fs::create_directories(parent, failed);
    if (failed) throw IoError({.file = parent.string()}, "cannot make the folder", failed.value());
  }
}

void StagedOutput::remove_staging() {
  // Where files are on a server, open ones cannot be removed.
  owner_.reset();
  files_.reset();
  std::error_code failed;
  const fs::path folder = std::exchange(staging_->folder, {});
  if (staging_->is_kept() && !folder.empty()) {
    failed = remove_resumable(folder);
  } else if (!folder.empty()) {
    fs::remove_all(folder, failed);
  }
  if (failed) notes_.push_back(folder.string() + " cannot be removed: " + failed.message());
}

void StagedOutput::give_up(bool forever) {
  if (staging_->is_kept() && !forever && has_job(staging_->folder)) {
    owner_.reset();
    files_.reset();
    if (!leaves_run_before_) {
      notes_.push_back("what is done is kept in " + staging_->folder.string() +
                       ": the same command goes on");
    }
    staging_->folder.clear();
    staging_->made_folders.clear();
    return;
  }
  remove_staging();
  std::error_code ignored;
  const std::vector<fs::path> made = std::exchange(staging_->made_folders, {});
  for (auto folder = made.rbegin(); folder != made.rend(); ++folder) fs::remove(*folder, ignored);
}

void StagedOutput::write_at(OutputId out, uint64_t offset, std::span<const std::byte> bytes) {
  files_->write_at(out, offset, bytes);
}

void StagedOutput::finish(OutputId out) {
  files_->finish(out);
}

void StagedOutput::sync() {
  if (staging_->all_at_once) return staging_->all_at_once->sync();
  if (plan_.outputs().size() > kSyncedOneByOne) return FileSystem(staging_->folder).sync();
  for (OutputId out = 0; out < plan_.outputs().size(); ++out) sync_file(staged_path(out));
}

fs::path StagedOutput::staged_path(OutputId out) const {
  return staging_->staged(out);
}

fs::path StagedOutput::final_path(OutputId out) const {
  return staging_->final_path(out);
}

void StagedOutput::commit(const Pointer& pointer, const CommitHelp&) {
  if (staging_->all_at_once) staging_->all_at_once->sync();
  if (staging_->is_kept() && !is_written()) {
    struct stat files {};
    if (::stat(staging_->files_in.c_str(), &files) != 0) {
      throw IoError({.file = staging_->files_in.string()}, "cannot stat", errno);
    }
    save_written(staging_->folder, files.st_ino);
    staging_->written_inode = files.st_ino;
  }
  std::optional<TextFile> text;
  // A run that is killed leaves it to the one that goes on.
  const std::string beside =
      staging_->is_kept() ? without_slash(staging_->target).filename().string() : "";
  if (!pointer.file.empty()) text.emplace(pointer.file, pointer.text, options_.durable, beside);
  try {
    commit_->publish();
    if (text) text->publish();
  } catch (const Error& error) {
    take_back(error);
  } catch (const std::exception& error) {  // memory, mostly
    take_back(IoError({.file = staging_->target.string()}, error.what(), 0));
  }
  note_failure(notes_, [&] { commit_->sync_published(); });
  // The names must not be lost when what could give them again is gone.
  if (staging_->is_kept()) note_failure(notes_, [&] { staging_->all_at_once->sync(); });
  if (text && options_.durable) note_failure(notes_, [&] { text->sync_published(); });
  staging_->made_folders.clear();
  remove_staging();
}

void StagedOutput::take_back(const Error& error) {
  const std::vector<std::string> problems = commit_->take_back();
  if (problems.empty()) error.raise();
  // What is kept there is the user's.
  owner_.reset();
  staging_->folder.clear();
  staging_->made_folders.clear();
  std::string text = error.message() + "; not everything could be put back";
  for (const std::string& problem : problems) text += "\n" + problem;
  Error(error, text).raise();
}

}  // namespace dsckpt
