// StagedOutput: output files that appear under their final names only when all of them are
// complete.
//
// Protocol:
//
// (1) Check that nothing is in the way, remove left-overs of killed runs, and check that the space
// suffices.
//
// (2) Make a staging folder and sign it (staging_owner.h). It lies in the output folder, or beside
// it if that is new or replaced as a whole. So a rename never crosses a file system.
//
// (3) Write and close every file there.
//
// (4) commit(): a whole folder is renamed, or exchanged with the old one. Otherwise, if files are
// replaced, take away the old last file first: it is the index that points at the others. Rename
// the files one by one in the plan's order, the last one last. Old files stay in the staging
// folder, and are put back if not all renames succeed.
//
// (5) Note on the output that it is committed, if the run could be resumed. Remove the staging
// folder, and without a commit the folders that prepare() made. commit.h has
// the two ways to commit.
//
// With StageOptions::job the next run of the same job can find the staging folder by its name
// (resumable_folder()). It stays when the run stops, and holds the files of journal.h. Its
// subfolder for files has another name in every run. So a suspended process of an earlier run that
// wakes up finds no file, and cannot create any. It may still write to files that it has open: its
// bytes for them are the same (patches.h).
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "dsckpt/error.h"
#include "dsckpt/run.h"
#include "exec/output.h"
#include "exec/stage_options.h"
#include "exec/staged_files.h"
#include "exec/staging_owner.h"
#include "io/folder.h"
#include "plan/copy_plan.h"

namespace dsckpt {

class Commit;
struct Staging;

// A file stands for its content (content_name.h). A new file replaces any that held the same
// content before, compressed or not.
class StagedOutput : public Output {
 public:
  // Does not access the disk yet.
  StagedOutput(const CopyPlan& plan, std::filesystem::path target, StageOptions options = {});
  ~StagedOutput() override;

  // Steps 1 and 2. Throws UsageError if the target is not a folder, or holds one of the plan's
  // files and `force` is not set. Throws IoError if the folder cannot be made or lacks space. The
  // destructor removes everything that was made. With StageOptions::job it resumes in the folder of
  // the earlier run, if there is one. It throws UsageError if that is of another job, still runs,
  // or may be of another user.
  void prepare() override;
  // Throws also for a folder that cannot be written to. Not with StageOptions::job.
  std::string check() override;

  // The staging folder.
  const Folder* folder() const override;
  StagingPlace place() const override;
  const std::vector<std::filesystem::path>& made_folders() const override;
  bool goes_on() const override { return goes_on_; }
  bool is_written() const override;
  bool keeps_what_is_written() const override { return true; }
  void take(const SentWork&) override {}  // files need nothing else
  void sync() override;
  ReadBack read_back() const override;
  void leave_run_before() override { leaves_run_before_ = true; }
  // With StageOptions::job.
  void hand_over() override;

  void write_at(OutputId out, uint64_t offset, std::span<const std::byte> bytes) override;
  void finish(OutputId out) override;

  // Also after an earlier run that had written everything; its read-back is done already.
  void commit(const Pointer& pointer = {}, const CommitHelp& help = {}) override;
  // The path of an output before and after the commit.
  std::filesystem::path staged_path(OutputId out) const;
  std::filesystem::path final_path(OutputId out) const;

  void give_up(bool forever = false) override;
  const std::vector<std::string>& notes() const override { return notes_; }

 private:
  std::optional<IoError> lack_of_space() const;
  bool take_up();
  void make_staging_folder();
  void set_folder(const Folder& folder);
  void make_folders_of_files() const;
  void check_run_before(bool whole_folder) const;
  void take_files_from_run_before();
  void note_committed();
  [[noreturn]] void take_back(const Error& error);
  void remove_staging();

  const CopyPlan& plan_;
  const StageOptions options_;
  std::unique_ptr<Staging> staging_;
  std::unique_ptr<Commit> commit_;     // since prepare()
  std::optional<StagingOwner> owner_;  // as long as there is a staging folder
  std::vector<std::string> notes_ = {};
  std::unique_ptr<StagedFiles> files_;  // since prepare()
  bool goes_on_ = false;
  bool leaves_run_before_ = false;
  bool is_elsewhere_ = false;  // than StageOptions::check wants it
};

}  // namespace dsckpt
