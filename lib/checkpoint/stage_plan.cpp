#include "checkpoint/stage_plan.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <limits>

#include "base/text.h"
#include "dsckpt/error.h"

namespace dsckpt {
namespace {

// More layers than this would take partition_balanced, and us, forever.
constexpr size_t kMaxBalancedLayers = 2048;

constexpr const char* kStagesHint =
    "--stages gives them: the first layer of each stage, 0,3,5, or uniform, parameters or blocks";

StageStarts uniform(size_t layers, uint32_t stages) {
  StageStarts starts;
  const size_t each = layers / stages;
  const size_t more = layers % stages;
  for (uint32_t stage = 0; stage < stages; ++stage) {
    starts.push_back(static_cast<uint32_t>(layers <= stages
                                               ? std::min<size_t>(stage, layers)
                                               : stage * each + std::min<size_t>(stage, more)));
  }
  return starts;
}

// The split whose largest and smallest stages differ least; of equal ones the last.
StageStarts balanced(const std::vector<uint64_t>& weights, uint32_t stages) {
  const size_t n = weights.size();
  if (n <= stages) return uniform(n, stages);
  if (n > kMaxBalancedLayers) throw UnsupportedError({}, counted(n, "layer") + " of a pipeline");
  struct Best {
    double most = std::numeric_limits<double>::infinity();
    double least = std::numeric_limits<double>::infinity();
    double cost = std::numeric_limits<double>::infinity();
    size_t from = 0;
  };
  const size_t columns = stages + size_t{1};
  std::vector<Best> best((n + 1) * columns);
  const auto at = [&](size_t layers, size_t parts) -> Best& {
    return best[layers * columns + parts];
  };
  std::vector<double> sums{0};
  for (const uint64_t weight : weights) sums.push_back(sums.back() + static_cast<double>(weight));
  at(0, 0).most = 0;
  at(0, 0).cost = 0;
  for (size_t i = 1; i <= n; ++i) {
    for (size_t parts = 1; parts <= std::min<size_t>(i, stages); ++parts) {
      Best& made = at(i, parts);
      for (size_t from = 0; from < i; ++from) {
        const Best& before = at(from, parts - 1);
        const double sum = sums[i] - sums[from];
        const double most = std::max(before.most, sum);
        const double least = std::min(before.least, sum);
        if (made.cost >= most - least) made = {most, least, most - least, from};
      }
    }
  }
  StageStarts starts(stages);
  size_t end = n;
  for (uint32_t stage = stages; stage-- > 0;) {
    end = at(end, stage + 1).from;
    starts[stage] = static_cast<uint32_t>(end);
  }
  return starts;
}

StageStarts by_method(const std::vector<StageLayer>& layers, uint32_t stages,
                      std::string_view method) {
  if (method == "uniform") return uniform(layers.size(), stages);
  std::vector<uint64_t> weights;
  for (const StageLayer& layer : layers) {
    weights.push_back(method == "blocks" ? static_cast<uint64_t>(layer.is_block) : layer.numel);
  }
  return balanced(weights, stages);
}

constexpr std::array<std::string_view, 3> kMethods{"uniform", "parameters", "blocks"};

std::string text_of(const StageStarts& starts) {
  std::string text;
  for (const uint32_t start : starts) text += (text.empty() ? "" : ",") + std::to_string(start);
  return text;
}

uint32_t stage_of(const StageStarts& starts, size_t layer) {
  const auto next = std::upper_bound(starts.begin(), starts.end(), layer);
  return static_cast<uint32_t>(next - starts.begin()) - 1;
}

// True if the starts put every layer where it is.
bool makes_present(const std::vector<StageLayer>& layers, const StageStarts& starts) {
  for (size_t i = 0; i < layers.size(); ++i) {
    if (layers[i].stage && *layers[i].stage != stage_of(starts, i)) return false;
  }
  return true;
}

StageStarts parsed(std::string_view text) {
  StageStarts starts;
  while (true) {
    uint32_t start = 0;
    const auto [end, failed] = std::from_chars(text.data(), text.data() + text.size(), start);
    const auto length = static_cast<size_t>(end - text.data());
    if (failed != std::errc() || (length < text.size() && text[length] != ',')) {
      throw UsageError("--stages '" + std::string(text) + "' is not a list of layers")
          .with_hint(kStagesHint);
    }
    starts.push_back(start);
    if (length == text.size()) return starts;
    text.remove_prefix(length + 1);
  }
}

void check_list(const StageStarts& starts, size_t layers, uint32_t stages) {
  if (starts.size() != stages) {
    throw UsageError("--stages names " + counted(starts.size(), "layer") + " for " +
                     counted(stages, "stage"));
  }
  if (starts.front() != 0) throw UsageError("--stages does not begin with layer 0");
  for (size_t i = 1; i < starts.size(); ++i) {
    if (starts[i] > starts[i - 1] && starts[i] < layers) continue;
    throw UsageError("--stages " + text_of(starts) + ": stage " + std::to_string(i) +
                     " would have no layers of " + counted(layers, "layer"));
  }
}

uint32_t present_stages(const std::vector<StageLayer>& layers) {
  uint32_t stages = 1;
  for (const StageLayer& layer : layers) {
    if (layer.stage) stages = std::max(stages, *layer.stage + 1);
  }
  return stages;
}

}  // namespace

StageStarts stage_starts(const std::vector<StageLayer>& layers, uint32_t stages,
                         std::string_view asked, std::string_view default_method) {
  if (std::find(kMethods.begin(), kMethods.end(), asked) != kMethods.end()) {
    return by_method(layers, stages, asked);
  }
  if (!asked.empty()) {
    StageStarts starts = parsed(asked);
    check_list(starts, layers.size(), stages);
    return starts;
  }
  const uint32_t present = present_stages(layers);
  std::optional<StageStarts> found;
  std::string text;
  bool agree = true;
  for (const std::string_view method : kMethods) {
    if (!default_method.empty() && method != default_method) continue;
    if (!makes_present(layers, by_method(layers, present, method))) continue;
    StageStarts starts = by_method(layers, stages, method);
    text += (text.empty() ? "" : ", ") + std::string(method) + " makes " + text_of(starts);
    agree = agree && (!found || *found == starts);
    found = std::move(starts);
  }
  if (!found) {
    throw UsageError(
        "no method of DeepSpeed makes the present stages of the pipeline, so none "
        "tells the new ones")
        .with_hint(kStagesHint);
  }
  if (!agree) {
    throw UsageError("nothing tells which layers each stage of the new pipeline has: " + text)
        .with_hint(kStagesHint);
  }
  return *found;
}

}  // namespace dsckpt
