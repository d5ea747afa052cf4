// Reports of values: statistics of tensors and differences between two, as JSON and as text.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "base/statistics.h"
#include "inspect/contents.h"
#include "inspect/diff.h"
#include "inspect/tensor_stats.h"

namespace dsckpt {

// "0.0123457": at most `digits` significant digits; "-" for NaN, which means no value.
std::string short_number(double value, int digits = 6);

// Difference::cosine() and relative_change() for floating types; "" for others.
std::string cosine_number(const Difference& difference, DType dtype);
std::string change_number(const Difference& difference, DType dtype);
// A value or a distance of a Difference of elements of `dtype`: all digits of integers,
// short_number for others, "nan" for NaN.
std::string difference_number(Exact value, DType dtype);

// {"count", "zeros", "nans", "positive_infinities", "negative_infinities", "min", "max", "mean",
// "std", "norm"}; null for what cannot be said: extremes of nothing, the deviation of one element.
nlohmann::json statistics_json(const Statistics& statistics);
// {"tensors": [tensor_json with "stats"], "totals": [{"state"?, "tensors", "stats"}]}
nlohmann::json stats_json(const InputFiles& inputs, const Contents& contents,
                          const std::vector<NamedTensor>& tensors, const TensorStats& stats);

// {"same", "counts": {verdict: tensors}, "tensors": [{"name", "state"?, "verdict", "dtype_a"?,
// "shape_a"?, "dtype_b"?, "shape_b"?, "compared_as"?, "values"?}], "total", "largest_in", "notes"};
// "values" and "total" are {"count", "differing", "outside", "max_absolute", "max_relative",
// "max_ulps"} and, of a tensor with a difference, "index", "a" and "b". Values of integers are
// integers, but in "total" all is float64. Null stands for what is infinite or NaN. With `all`,
// tensors that are equal are listed too.
nlohmann::json diff_json(const Diff& diff, bool all);

}  // namespace dsckpt
