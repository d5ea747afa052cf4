// Python objects in checkpoints, in their pickled form.
#pragma once

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "dsckpt/dtype.h"
#include "pickle/pickle.h"

namespace dsckpt {

// The elements of a list or a tuple. Throws CorruptError for anything else, even sets.
std::span<const pickle::Value> list_or_tuple(const pickle::Value& value);

// Numbers as integers, for a list or a tuple.
template <typename Numbers>
std::vector<pickle::Value> integers(const Numbers& numbers) {
  std::vector<pickle::Value> values;
  values.reserve(numbers.size());
  for (const auto number : numbers) {
    values.push_back(pickle::Document::integer(static_cast<int64_t>(number)));
  }
  return values;
}

// torch.Size(shape).
pickle::Value torch_size(pickle::Document& document, const Shape& shape);

// An empty collections.OrderedDict.
pickle::Value ordered_dict(pickle::Document& document);

// The lr_scheduler of a run before its first step. DeepSpeed's schedules take the number of the
// last batch from it. torch's schedules keep their own values where it has none.
pickle::Value first_lr_scheduler(pickle::Document& document);

}  // namespace dsckpt
