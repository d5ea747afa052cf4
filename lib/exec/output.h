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

// A file beside the output that is to have `text`: last of all, so that it names what is there.
struct Pointer {
  std::filesystem::path file = {};  // empty: none
  std::string text = {};
};

// What only whoever runs the plan can do while it is committed.
struct CommitHelp {
  // Reads outputs [first, last) back and throws IoError for what is not as it was meant. Empty if
  // nobody asked for it.
  std::function<void(OutputId first, OutputId last)> read_back = {};
  // Writes an output, which is finished, once more.
  std::function<void(OutputId out)> write_again = {};
};

// Owned by one thread; write_at and finish come from any. The plan must outlive it.
class Output : public Sink {
 public:
  // Once, before the first write: looks whether something is in the way, removes what killed runs
  // have left, and makes the place where files are written until the commit. Throws UsageError for
  // what is in the way, IoError.
  virtual void prepare() = 0;
  // Instead of prepare(), for who writes nothing: throws what it would. Returns what it would say
  // of the space; "" if that suffices.
  virtual std::string check() = 0;
  // Once, after execute(). Throws UsageError for a file that has appeared meanwhile and IoError:
  // then the output is as it was before, or the message says of each path what is there.
  virtual void commit(const Pointer& pointer, const CommitHelp& help) = 0;
  // Instead of commit(): removes what prepare() has made and what was written, unless another run
  // can go on with it; with `forever` that, too. The destructor does so, too, but without a word.
  virtual void give_up(bool forever) = 0;
  // What a user should know: left-overs of other runs, what could not be removed, and of a commit
  // what may not last.
  virtual const std::vector<std::string>& notes() const = 0;
};

}  // namespace dsckpt
