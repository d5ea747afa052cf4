#include "report/values.h"

#include <array>
#include <cmath>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "report/report.h"

namespace dsckpt {
using nlohmann::json;

namespace {

bool is_integer(DType dtype) {
  return !is_floating_point(real_part(dtype));
}

json integer_json(Exact value) {
  if (value < 0) return static_cast<int64_t>(value);
  return static_cast<uint64_t>(value);
}

// `format` takes digits and a value.
std::string formatted(const char* format, int digits, double value) {
  if (std::isnan(value)) return "-";
  std::array<char, 32> text{};
  std::snprintf(text.data(), text.size(), format, digits, value);
  return text.data();
}

}  // namespace

std::string short_number(double value, int digits) {
  return formatted("%.*g", digits, value);
}

std::string change_number(const Difference& difference, DType dtype) {
  return is_integer(dtype) ? "" : short_number(difference.relative_change(), 3);
}

std::string cosine_number(const Difference& difference, DType dtype) {
  return is_integer(dtype) ? "" : formatted("%.*f", 6, difference.cosine());
}

std::string difference_number(Exact value, DType dtype) {
  if (is_integer(dtype)) return integer_json(value).dump();
  return std::isnan(value) ? "nan" : short_number(static_cast<double>(value));
}

// nlohmann::json writes numbers that are not finite as null.
json statistics_json(const Statistics& statistics) {
  return {{"count", statistics.count},
          {"zeros", statistics.zeros},
          {"nans", statistics.nans},
          {"positive_infinities", statistics.positive_infinities},
          {"negative_infinities", statistics.negative_infinities},
          {"min", statistics.min},
          {"max", statistics.max},
          {"mean", statistics.mean},
          {"std", statistics.standard_deviation()},
          {"norm", statistics.norm()}};
}

json stats_json(const InputFiles& inputs, const Contents& contents,
                const std::vector<NamedTensor>& tensors, const TensorStats& stats) {
  json out = {{"tensors", json::array()}, {"totals", json::array()}};
  for (size_t i = 0; i < tensors.size(); ++i) {
    json tensor = tensor_json(inputs, contents, tensors[i]);
    tensor["stats"] = statistics_json(stats.tensors[i]);
    out["tensors"].push_back(std::move(tensor));
  }
  for (const TensorStats::Total& total : stats.totals) {
    json entry = {{"tensors", total.tensors}, {"stats", statistics_json(total.values)}};
    if (!total.state.empty()) entry["state"] = total.state;
    out["totals"].push_back(std::move(entry));
  }
  return out;
}

namespace {

json difference_json(const Difference& difference) {
  return {{"relative_change", difference.relative_change()},
          {"cosine", difference.cosine()},
          {"count", difference.count},
          {"differing", difference.differing},
          {"outside", difference.outside},
          {"max_absolute", static_cast<double>(difference.max_absolute)},
          {"max_relative", difference.max_relative},
          {"max_ulps", difference.max_ulps}};
}

json tensor_diff_json(const TensorDiff& tensor) {
  json out = {{"name", tensor.name}, {"verdict", to_string(tensor.verdict)}};
  if (!tensor.state.empty()) out["state"] = tensor.state;
  if (tensor.dtype_a) out["dtype_a"] = torch_name(*tensor.dtype_a);
  if (tensor.shape_a) out["shape_a"] = *tensor.shape_a;
  if (tensor.dtype_b) out["dtype_b"] = torch_name(*tensor.dtype_b);
  if (tensor.shape_b) out["shape_b"] = *tensor.shape_b;
  if (!tensor.as) return out;
  out["compared_as"] = torch_name(*tensor.as);
  out["values"] = difference_json(tensor.values);
  if (!tensor.alias_of.empty()) out["alias_of"] = tensor.alias_of;
  if (!is_floating_point(real_part(*tensor.as))) {
    out["values"]["relative_change"] = nullptr;
    out["values"]["cosine"] = nullptr;
  }
  const auto exact = [&](Exact value) {
    return is_integer(*tensor.as) ? integer_json(value) : json(static_cast<double>(value));
  };
  out["values"]["max_absolute"] = exact(tensor.values.max_absolute);
  if (tensor.values.differing > 0) {
    out["values"].update({{"index", tensor.values.index},
                          {"a", exact(tensor.values.a)},
                          {"b", exact(tensor.values.b)}});
  }
  return out;
}

}  // namespace

json diff_json(const Diff& diff, bool all) {
  using enum Verdict;
  json out = {{"same", diff.same()},           {"counts", json::object()},
              {"tensors", json::array()},      {"total", difference_json(diff.total)},
              {"largest_in", diff.largest_in}, {"notes", diff.notes}};
  for (const Verdict verdict : {equal, within, values, dtype, shape, only_in_a, only_in_b}) {
    out["counts"][std::string(to_string(verdict))] = diff.count(verdict);
  }
  for (const TensorDiff& tensor : diff.tensors) {
    if (all || tensor.verdict != equal) out["tensors"].push_back(tensor_diff_json(tensor));
  }
  return out;
}

}  // namespace dsckpt
