// StagedOutput: output files that appear under their final names only when all of them are
// complete.
//
// Protocol. (1) Check that nothing is in the way, remove what killed runs have left there, and
// check that the space suffices. (2) Make a staging folder, inside the output folder or, if that is
// new or replaced as a whole, beside it, so that a rename never crosses a file system; sign it
// (staging_owner.h). (3) Write and close every file there. (4) commit(): a whole folder is renamed,
// or exchanged with the old one. Otherwise, if files are replaced, take away the old last file
// first (the last one is the index that points at the others); rename one by one in the plan's
// order, the last one last. What was there before is kept in the staging folder, and put back if
// not all can be renamed. (5) Remove the staging folder, and without a commit whatever folders
// prepare() made. The two ways to commit are in commit.h.
//
// With StageOptions::job the staging folder has a name that the next run of the same job finds
// (resumable_folder()), stays when the run stops, and holds what journal.h describes. The folder of
// the files in it has another name in every run: a process of a run before that was suspended, and
// goes on, finds no file any more, and can make none. It may write to files that it has open: it
// has the same bytes for them (patches.h).
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

// A file stands for its content (content_name.h): a new one takes the place of whatever held the
// same content before, compressed or not.
class StagedOutput : public Output {
 public:
  // Looks at nothing yet.
  StagedOutput(const CopyPlan& plan, std::filesystem::path target, StageOptions options = {});
  ~StagedOutput() override;

  // Steps 1 and 2. Throws UsageError if the target is not a folder or holds one of the plan's files
  // and `force` is not set; IoError if the folder cannot be made or has not enough space. The
  // destructor removes what it has made. With StageOptions::job: goes on in the folder of the run
  // before, if there is one; throws UsageError if that is of another job, still runs, or may be of
  // another user.
  void prepare() override;
  // Throws also for a folder that cannot be written into. Not with StageOptions::job.
  std::string check() override;
  // Since prepare(): the staging folder, the one that it is in, and how files are staged in it.
  const Folder& folder() const;
  const Folder& folder_above() const;
  StagingPlace place() const;
  // Whether a run before had begun there.
  bool goes_on() const { return goes_on_; }
  // Whether a run before had written everything there, so that only the commit is left.
  bool is_written() const;

  void write_at(OutputId out, uint64_t offset, std::span<const std::byte> bytes) override;
  void finish(OutputId out) override;

  // Also after a run that had written everything. What is read back was so before.
  void commit(const Pointer& pointer = {}, const CommitHelp& help = {}) override;
  // Waits until everything that was written is on the device; not while anything is. Throws
  // IoError.
  void sync();
  // Where an output is, before and after the commit. A staged one also as a path in folder().
  std::filesystem::path staged_name(OutputId out) const;
  std::filesystem::path staged_path(OutputId out) const;
  std::filesystem::path final_path(OutputId out) const;

  void give_up(bool forever = false) override;
  // What a run before has left is of no use: give_up() leaves it as it is, and does not say that
  // the same command goes on.
  void leave_run_before() { leaves_run_before_ = true; }
  // Instead of commit(), with StageOptions::job: whoever goes on there has what was made.
  void hand_over();
  // Those that prepare() has made for the output, outermost first.
  const std::vector<std::filesystem::path>& made_folders() const;
  const std::vector<std::string>& notes() const override { return notes_; }

 private:
  std::optional<IoError> lack_of_space() const;
  bool take_up();
  void make_staging_folder();
  void set_folder(const Folder& folder);
  void make_folders_of_files() const;
  void check_run_before(bool whole_folder) const;
  void take_files_from_run_before();
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
};

}  // namespace dsckpt
