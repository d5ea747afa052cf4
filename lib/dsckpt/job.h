// Job: a conversion, planned. Nothing is written before it is run.
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

// What plan_weights() and its like make of a Source, which may be gone when it runs. Immutable; any
// thread.
class DSCKPT_EXPORT Job {
 public:
  // What a user should know before it runs.
  const std::vector<std::string>& notes() const;
  // What cannot be written since files of the input are lost, a line each.
  const std::vector<std::string>& left_out() const;
  // By path. The content of every byte is decided.
  std::vector<JobFile> files() const;
  uint64_t bytes_read() const;
  uint64_t bytes_written() const;
  // What a tool's `--dry-run --json` shows of it (apps/README.md#json): one JSON object.
  std::string json() const;

  // The library's own.
  struct Impl;
  explicit Job(Impl impl);
  const Impl& operator*() const { return *impl_; }
  const Impl* operator->() const { return impl_.get(); }

 private:
  std::shared_ptr<const Impl> impl_;
};

}  // namespace dsckpt
