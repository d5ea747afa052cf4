// What `browse` shows of one tensor, of two, and of the whole path.
#pragma once

#include <functional>
#include <string>

#include "ckpt_inspect/browse/job.h"
#include "inspect/contents.h"
#include "io/input_file.h"

namespace dsckpt::inspect {

// What was opened. Borrowed by all that is made here.
struct Opened {
  const std::string& path;
  const InputFiles& inputs;
  const Contents& contents;  // open with its states
};

using PageWork = std::function<Lines(Progress& progress)>;

// Where `tensor` lies, as `where`.
PageWork extents_page(const Opened& opened, const NamedTensor& tensor);
// Its first values, as `print`.
PageWork values_page(const Opened& opened, const NamedTensor& tensor);
// As `stats`, one number a line.
PageWork statistics_page(const Opened& opened, const NamedTensor& tensor);
// As `diff` of these two, whatever their names.
PageWork difference_page(const Opened& opened, const NamedTensor& a, const NamedTensor& b);
// What every byte of the files is for, and what there is to say of the path.
PageWork bytes_page(const Opened& opened);

}  // namespace dsckpt::inspect
