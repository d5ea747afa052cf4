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
  // For each tensor, in the given order. A tied tensor has its owner's; it is read only if the
  // owner is not given.
  std::vector<Statistics> tensors;

  // The total of all tensors of a kind; a tied one counts once.
  struct Total {
    std::string state;  // NamedTensor::state
    size_t tensors = 0;
    Statistics values;
  };
  // In the order in which the states first occur.
  std::vector<Total> totals;
};

// Makes one pass over `tensors`, whose bytes are in `inputs`. The result does not depend on which
// rank reads. Throws as ask().
TensorStats tensor_stats(const InputFiles& inputs, const std::vector<NamedTensor>& tensors,
                         const StatisticsQuestion& question, const Reading& reading);

}  // namespace dsckpt
