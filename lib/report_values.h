// Reports of values: statistics of tensors and what differs between two, as JSON and as text.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "base/statistics.h"
#include "inspect/contents.h"
#include "inspect/tensor_stats.h"

namespace dsckpt {

// "0.0123457": six digits, as short as they can be; "-" for NaN, which stands for no value.
std::string short_number(double value);

// {"count", "zeros", "nans", "positive_infinities", "negative_infinities", "min", "max", "mean",
// "std", "norm"}; null for what cannot be said: extremes of nothing, the deviation of one element.
nlohmann::json statistics_json(const Statistics& statistics);
// {"tensors": [tensor_json with "stats"], "totals": [{"state"?, "tensors", "stats"}]}
nlohmann::json stats_json(const InputFiles& inputs, const std::vector<NamedTensor>& tensors,
                          const TensorStats& stats);

}  // namespace dsckpt
