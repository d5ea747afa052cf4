// Output: where the files of a plan go, and are seen when all of them are complete: a folder
// (StagedOutput) or an object store (FarOutput).
#pragma once

#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "exec/sink.h"
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
  // Reads outputs [first, last) back and throws IoError for bytes that differ from the planned
  // ones. Empty if nobody asked for it.
  std::function<void(OutputId first, OutputId last)> read_back = {};
  // Writes a finished output once more.
  std::function<void(OutputId out)> write_again = {};
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
