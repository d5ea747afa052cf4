#include "report_values.h"

#include <array>
#include <cmath>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "report.h"

namespace dsckpt {
using nlohmann::json;

std::string short_number(double value) {
  if (std::isnan(value)) return "-";
  std::array<char, 32> text{};
  std::snprintf(text.data(), text.size(), "%.6g", value);
  return text.data();
}

// nlohmann::json writes what is no finite number as null.
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

json stats_json(const InputFiles& inputs, const std::vector<NamedTensor>& tensors,
                const TensorStats& stats) {
  json out = {{"tensors", json::array()}, {"totals", json::array()}};
  for (size_t i = 0; i < tensors.size(); ++i) {
    json tensor = tensor_json(inputs, tensors[i]);
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

}  // namespace dsckpt
