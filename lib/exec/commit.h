// Commit: the ways to give staged files their final names, and to take them back if some fail. For
// StagedOutput only.
#pragma once

#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "exec/stage_options.h"
#include "io/folder.h"
#include "io/output_file.h"
#include "plan/copy_plan.h"

namespace dsckpt {

// The staged files and their places. StagedOutput owns it and fills it in.
struct Staging {
  const CopyPlan& plan;
  StageOptions options;
  std::filesystem::path target;       // the output folder, as messages call it
  std::optional<Folder> place = {};   // the folder that the staging folder is in
  std::optional<Folder> folder = {};  // the staging folder
  bool is_there = false;              // it is removed in the end
  // The subfolder in which the files are written.
  std::string files_in = {};
  // The same for incomplete packed files (StagingPlace::attempts_in).
  std::string attempts_in = {};
  std::vector<std::filesystem::path> made_folders = {};  // outermost first
  std::optional<FileSystem> all_at_once = {};            // kept, or durable and many files
  // For a resumed run that has written everything: the inode of files_in. Some or all of the staged
  // files may then already have their final names.
  std::optional<uint64_t> written_inode = {};

  bool is_packed(OutputId out) const;
  // The path in the staging folder.
  std::filesystem::path staged(OutputId out) const;
  std::filesystem::path final_path(OutputId out) const;
  // All paths in the output folder under which a file may hold the content of `out`.
  std::vector<std::filesystem::path> forms(OutputId out) const;
  // The prefix of the names of files_in and attempts_in.
  static constexpr const char* kFilesPrefix = "files";
  static constexpr const char* kAttemptsPrefix = "attempts";
  // The subfolder of the staging folder that keeps old files until the commit is over.
  static constexpr const char* kOld = "old";
  std::filesystem::path old_path() const { return folder->path() / kOld; }
  // True if the staging folder stays when the run stops.
  bool is_kept() const { return options.job != nullptr; }
};

// For one use: check(), then publish() and sync_published(), or take_back(). Owned by one thread;
// the Staging must outlive it.
class Commit {
 public:
  virtual ~Commit() = default;

  // Throws UsageError if a file in the output folder is in the way.
  virtual void check() = 0;
  // The folder for the staging folder (Staging::place), so that renames do not cross a file system.
  virtual std::filesystem::path place() const = 0;
  // Gives the files their final names. Throws IoError, and UsageError for a file that has appeared
  // since check(). Call take_back() after an exception.
  virtual void publish() = 0;
  // Undoes publish(), even if it was only partly done: new files lose their names, old ones get
  // theirs back. Returns a line for each path that failed, with the file that is there now. Then
  // the staging folder must stay.
  virtual std::vector<std::string> take_back() = 0;
  // Syncs what publish() left to be synced. Throws IoError.
  virtual void sync_published() = 0;

 protected:
  explicit Commit(Staging& staging) : staging_(staging) {}
  Staging& staging_;
};

// Commits the whole folder at once if it is new or replaced as a whole, else file by file. Throws
// UsageError if the target cannot be a folder.
std::unique_ptr<Commit> choose_commit(Staging& staging);
// The way that the resumed run had chosen.
std::unique_ptr<Commit> same_commit(Staging& staging, bool whole_folder);
// The staging folder of a run that can be resumed: beside the target if it is committed as a whole,
// else in it.
std::filesystem::path resumable_folder(const std::filesystem::path& target, bool whole_folder);
// Makes such a folder. Throws UsageError where nobody could tell later whose it is, IoError.
Folder make_resumable_folder(const Folder& place, const std::string& name);
// The staging folder and its parent, if they exist. Throws UsageError if it is not this user's.
struct Resumable {
  Folder place;
  Folder folder;
};
std::optional<Resumable> find_resumable(const std::filesystem::path& target, bool whole_folder);
// Throws UsageError if another process writes in that folder, or no run has signed it. The same if
// it is of another job.
void check_free_to_take(const Folder& folder);
void check_same_job(const Folder& folder, const JobIdentity& job);
// True if there is one with a job. Throws as find_resumable().
bool can_go_on(const std::filesystem::path& target);

// Notes on an output folder that a run which could be resumed has committed it. The note is an
// extended attribute, so neither files nor names change. Returns 0 or errno: ENOTSUP for file
// systems without them.
int note_commit(const Folder& output);
// True if the folder has that note. Nothing if its file system has no notes.
std::optional<bool> is_noted_commit(const std::filesystem::path& output);

// The absolute path of a folder, without trailing slashes.
std::filesystem::path without_slash(const std::filesystem::path& path);

}  // namespace dsckpt
