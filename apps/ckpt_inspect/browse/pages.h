// The pages of `browse` for one tensor, for two, and for the whole path.
#pragma once

#include <functional>
#include <string>

#include "ckpt_inspect/browse/job.h"
#include "inspect/contents.h"
#include "io/input_file.h"

namespace dsckpt::inspect {

// The open path. All pages borrow it.
struct Opened {
  const std::string& path;
  const InputFiles& inputs;
  const Contents& contents;  // open with its states
};

using PageWork = std::function<Lines(Progress& progress)>;

// The places of `tensor`, as `where`.
PageWork extents_page(const Opened& opened, const NamedTensor& tensor);
// Its first values, as `print`.
PageWork values_page(const Opened& opened, const NamedTensor& tensor);
// Its statistics, as `stats`, one number a line.
PageWork statistics_page(const Opened& opened, const NamedTensor& tensor);
// The differences between the two, as `diff`, whatever their names.
PageWork difference_page(const Opened& opened, const NamedTensor& a, const NamedTensor& b);
// The use of every byte of the files, and the notes on the path.
PageWork bytes_page(const Opened& opened);

}  // namespace dsckpt::inspect
