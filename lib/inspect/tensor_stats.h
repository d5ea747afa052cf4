// Statistics of the values of tensors, each read once.
#pragma once

#include <string>
#include <vector>

#include "base/statistics.h"
#include "inspect/ask.h"
#include "inspect/contents.h"
#include "io/input_file.h"

namespace dsckpt {

struct TensorStats {
  // Of each tensor, in the order in which they were given. A tied tensor has its owner's; it is
  // read only if the owner is not given.
  std::vector<Statistics> tensors;

  // Of all tensors of a kind together; a tied one counts once.
  struct Total {
    std::string state;  // NamedTensor::state
    size_t tensors = 0;
    Statistics values;
  };
  // In the order in which the states first come.
  std::vector<Total> totals;
};

// One pass over `tensors`, whose bytes are in `inputs`. Does not depend on who reads. Throws as
// ask() does.
TensorStats tensor_stats(const InputFiles& inputs, const std::vector<NamedTensor>& tensors,
                         const StatisticsQuestion& question, const Reading& reading);

}  // namespace dsckpt
