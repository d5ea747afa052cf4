// Output: where the files of a plan go, and are seen when all of them are complete: a folder
// (StagedOutput) or an object store (FarOutput). Other processes may write them too, and a later
// one may commit them: they meet in a folder (step_files.h).
#pragma once

#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "exec/staged_files.h"
#include "exec/staging_sink.h"
#include "io/folder.h"
#include "plan/copy_plan.h"

namespace dsckpt {

// A file beside the output that is to contain `text`. It is written last, so that it names a
// complete output.
struct Pointer {
  std::filesystem::path file = {};  // empty: none
  std::string text = {};
};

// Steps of the commit that only the runner of the plan can do.
struct CommitHelp {
  // Reads outputs [first, last) back, by Output::read_back(), and throws IoError for bytes that
  // differ from the planned ones. Empty if nobody asked for it.
  std::function<void(OutputId first, OutputId last)> read_back = {};
  // Writes a finished output once more.
  std::function<void(OutputId out)> write_again = {};
};

// How outputs are read back.
struct ReadBack {
  // The folder with the outputs before the commit. Nothing: they are read during the commit.
  std::optional<Folder> folder = {};
  std::function<std::filesystem::path(OutputId)> path = {};
  std::function<std::string(OutputId)> shown = {};
};

// Owned by one thread; any thread calls write_at and finish. The plan must outlive it.
class Output : public Sink {
 public:
  // Call it once, before the first write. Checks whether anything is in the way, removes left-overs
  // of killed runs, and makes the place for files until the commit. Throws UsageError for files in
  // the way, IoError.
  virtual void prepare() = 0;
  // Instead of prepare(), for callers that write nothing: throws as prepare() would. Returns its
  // message about too little space; "" if the space suffices.
  virtual std::string check() = 0;

  // The rest but commit() and give_up() after prepare(). The folder in which processes meet;
  // nullptr: one process does all of it at once.
  virtual const Folder* folder() const = 0;
  // With a folder: the facts that others need to write there, and the folders that prepare() made,
  // outermost first.
  virtual StagingPlace place() const = 0;
  virtual const std::vector<std::filesystem::path>& made_folders() const = 0;
  // True if an earlier run had begun there, and if it had written everything, so that only the
  // commit is left.
  virtual bool goes_on() const = 0;
  virtual bool is_written() const = 0;
  // True if sync() makes everything written so far outlive this process.
  virtual bool keeps_what_is_written() const = 0;
  // Takes over what another process has sent.
  virtual void take(const SentWork& work) = 0;
  // Waits until everything written is on the device; not during a write. Throws IoError.
  virtual void sync() = 0;
  virtual ReadBack read_back() const = 0;
  // Declares the left-overs of the earlier run useless. give_up() then leaves them unchanged, and
  // does not say that the same command resumes.
  virtual void leave_run_before() = 0;
  // Instead of commit(): leaves everything to the process that resumes.
  virtual void hand_over() = 0;

  // Call it once, after execute(). Throws UsageError for a file that has appeared meanwhile, and
  // IoError. Then the output is as it was before, or the message names the files that are there.
  virtual void commit(const Pointer& pointer, const CommitHelp& help) = 0;
  // Instead of commit(): removes the work of prepare() and all files written, unless another run
  // can resume with them; with `forever` even then. The destructor does so too, ignoring errors.
  virtual void give_up(bool forever) = 0;
  // Notes for the user: left-overs of other runs, files that could not be removed, and results of a
  // commit that may not last.
  virtual const std::vector<std::string>& notes() const = 0;
};

}  // namespace dsckpt
