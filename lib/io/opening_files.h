// Reports files that are opened many at a time (InputFiles::watch).
#pragma once

#include <algorithm>
#include <cstddef>

#include "dsckpt/error.h"
#include "dsckpt/run.h"

namespace dsckpt {

// Tells `progress`, if there is one, that `files` will be opened now. It may already know some of
// them. Any thread.
class OpeningFiles {
 public:
  OpeningFiles(Progress* progress, size_t files) : progress_(progress) {
    if (progress_ == nullptr) return;
    progress_->files_total = std::max(progress_->files_total.load(), progress_->files_done + files);
  }

  void opened_one() const {
    if (progress_ != nullptr) ++progress_->files_done;
  }
  bool is_cancelled() const { return progress_ != nullptr && progress_->cancelled; }
  void throw_if_cancelled() const {
    if (is_cancelled()) throw InterruptedError();
  }

 private:
  Progress* progress_;
};

}  // namespace dsckpt
