// Commit: the ways in which staged files get their final names, and lose them again if not all can.
// For StagedOutput only.
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

// What is staged, and where. A StagedOutput's, which fills it in.
struct Staging {
  const CopyPlan& plan;
  StageOptions options;
  std::filesystem::path target;       // the output folder, as messages call it
  std::optional<Folder> place = {};   // the folder that the staging folder is in
  std::optional<Folder> folder = {};  // the staging folder
  bool is_there = false;              // it is removed in the end
  // Where the files are written: a folder in it.
  std::string files_in = {};
  // The same for packed files that are not whole (StagingPlace::attempts_in).
  std::string attempts_in = {};
  std::vector<std::filesystem::path> made_folders = {};  // outermost first
  std::optional<FileSystem> all_at_once = {};            // kept, or durable and many files
  // Of a run that goes on when all is written: the inode of files_in. Some or all of what is staged
  // may then have got its final name before.
  std::optional<uint64_t> written_inode = {};

  bool is_packed(OutputId out) const;
  // In the staging folder.
  std::filesystem::path staged(OutputId out) const;
  std::filesystem::path final_path(OutputId out) const;
  // All paths in the output folder under which a file may hold the content of `out`.
  std::vector<std::filesystem::path> forms(OutputId out) const;
  // What files_in and attempts_in begin with.
  static constexpr const char* kFilesPrefix = "files";
  static constexpr const char* kAttemptsPrefix = "attempts";
  // Where old files are kept in the staging folder until the commit is over.
  static constexpr const char* kOld = "old";
  std::filesystem::path old_path() const { return folder->path() / kOld; }
  // Whether the staging folder stays if the run stops.
  bool is_kept() const { return options.job != nullptr; }
};

// One use: check(), then publish() and sync_published(), or take_back(). Owned by one thread; the
// Staging must outlive it.
class Commit {
 public:
  virtual ~Commit() = default;

  // Throws UsageError if something is in the way in the output folder.
  virtual void check() = 0;
  // Where the staging folder is made (Staging::place), so that renames do not cross a file system.
  virtual std::filesystem::path place() const = 0;
  // Gives the files their final names. Throws UsageError for a file that has appeared since
  // check(), and IoError; then take_back().
  virtual void publish() = 0;
  // Undoes what publish() has done, all of it or some: new files lose their names, old ones get
  // theirs back. Returns a line for each path of which that failed, which says what is there now;
  // the staging folder must then stay.
  virtual std::vector<std::string> take_back() = 0;
  // Makes what publish() has left to be made durable so. Throws IoError.
  virtual void sync_published() = 0;

 protected:
  explicit Commit(Staging& staging) : staging_(staging) {}
  Staging& staging_;
};

// The whole folder at once if it is new, or replaced as a whole; else file by file. Throws
// UsageError if the target cannot be a folder.
std::unique_ptr<Commit> choose_commit(Staging& staging);
// The one that was chosen by a run that is gone on with.
std::unique_ptr<Commit> same_commit(Staging& staging, bool whole_folder);
// The staging folder of a run that can be gone on with: beside the target if it is committed as a
// whole, else in it.
std::filesystem::path resumable_folder(const std::filesystem::path& target, bool whole_folder);
// The folder that it is in, and it, if they are there. Throws UsageError if it is not this user's.
struct Resumable {
  Folder place;
  Folder folder;
};
std::optional<Resumable> find_resumable(const std::filesystem::path& target, bool whole_folder);
// Whether there is one with a job. Throws what find_resumable() throws.
bool can_go_on(const std::filesystem::path& target);

// The absolute path of a folder, whatever slashes it was given with.
std::filesystem::path without_slash(const std::filesystem::path& path);

}  // namespace dsckpt
