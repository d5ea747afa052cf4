// Job: a planned conversion. Nothing is written until it runs.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "dsckpt/export.h"
#include "dsckpt/run.h"

namespace dsckpt {

// A file that a job will write.
struct JobFile {
  std::string path;    // relative to the output folder
  uint64_t bytes = 0;  // of its content
};

// A conversion that plan_weights() or another planner made of a Source, which need not live until
// it runs. Immutable; any thread.
class DSCKPT_EXPORT Job {
 public:
  // Notes for the user, to be read before the run.
  const std::vector<std::string>& notes() const;
  // The parts that cannot be written because input files are lost, one a line.
  const std::vector<std::string>& left_out() const;
  // All files, sorted by path. The plan has decided every byte of them.
  std::vector<JobFile> files() const;
  uint64_t bytes_read() const;
  uint64_t bytes_written() const;
  // The JSON that a tool's `--dry-run --json` prints (apps/README.md#json): one object.
  std::string json() const;

  // Internal to the library.
  struct Impl;
  explicit Job(Impl impl);
  const Impl& operator*() const { return *impl_; }
  const Impl* operator->() const { return impl_.get(); }

 private:
  std::shared_ptr<const Impl> impl_;
};

}  // namespace dsckpt
