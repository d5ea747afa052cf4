#include "reshard/batch_plan.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "base/text.h"

namespace dsckpt {
using nlohmann::ordered_json;
namespace {

constexpr const char* kTrainBatch = "train_batch_size";
constexpr const char* kMicroBatch = "train_micro_batch_size_per_gpu";
constexpr const char* kAccumulation = "gradient_accumulation_steps";

// Divisors are found by trying all numbers up to the root.
constexpr int64_t kMaxGlobal = int64_t{1} << 40;

std::string text_of(const BatchSetting& setting) {
  return "micro batch " + std::to_string(setting.micro) + " x accumulation " +
         std::to_string(setting.accumulation);
}

ordered_json json_of(const BatchSetting& setting) {
  return {{kMicroBatch, setting.micro}, {kAccumulation, setting.accumulation}};
}

// The ways in which a rank can process `samples` of a step.
std::vector<BatchSetting> settings_of(int64_t samples) {
  std::vector<BatchSetting> settings;
  for (int64_t micro = 1; micro <= samples / micro; ++micro) {
    if (samples % micro != 0) continue;
    settings.push_back({micro, samples / micro});
    if (micro != samples / micro) settings.push_back({samples / micro, micro});
  }
  std::sort(settings.begin(), settings.end(),
            [](const BatchSetting& a, const BatchSetting& b) { return a.micro < b.micro; });
  return settings;
}

BatchSetting suggest(const std::vector<BatchSetting>& settings, int64_t largest_micro) {
  BatchSetting best = settings.front();
  for (const BatchSetting& setting : settings) {
    if (setting.micro <= largest_micro) best = setting;
  }
  return best;
}

// The old run's numbers, or why they are not known.
std::string derive(const EngineConfig& config, BatchPlan& plan) {
  const auto& train = config.train_batch_size;
  const auto& micro = config.train_micro_batch_size_per_gpu;
  const auto& accumulation = config.gradient_accumulation_steps;
  const int64_t ranks = plan.old_ranks;
  if (!train && !micro) {
    return std::string("the configuration has neither ") + kTrainBatch + " nor " + kMicroBatch;
  }
  for (const auto& [key, value] :
       {std::pair(kTrainBatch, train), {kMicroBatch, micro}, {kAccumulation, accumulation}}) {
    if (value && (*value < 1 || *value > kMaxGlobal)) {
      return std::string(key) + " is " + std::to_string(*value);
    }
  }
  if (micro && accumulation) {
    plan.old_setting = {*micro, *accumulation};
  } else if (!train) {
    plan.old_setting = {*micro, 1};
  } else if (micro) {
    plan.old_setting = {*micro, *train / *micro / ranks};
  } else if (accumulation) {
    plan.old_setting = {*train / ranks / *accumulation, *accumulation};
  } else {
    plan.old_setting = {*train / ranks, 1};
  }
  const BatchSetting& old = plan.old_setting;
  const bool too_large = old.micro != 0 && old.accumulation > kMaxGlobal / old.micro / ranks;
  const int64_t product = too_large ? 0 : old.micro * old.accumulation * ranks;
  if (too_large || product == 0 || (train && *train != product)) {
    return (train ? std::string(kTrainBatch) + " is " + std::to_string(*train) + ", which is not "
                  : "the configuration asks for ") +
           text_of(old) + " x " + counted(ranks, "rank");
  }
  plan.global = product;
  return "";
}

}  // namespace

std::optional<BatchChoice> BatchPlan::choice() const {
  if (suggested) return BatchChoice{global, *suggested};
  if (!nearest.empty()) return nearest.front();
  return std::nullopt;
}

BatchPlan plan_batch(const EngineConfig& config, uint32_t old_ranks, uint32_t new_ranks) {
  BatchPlan plan{.old_ranks = old_ranks, .new_ranks = new_ranks};
  plan.unknown = derive(config, plan);
  if (!plan.unknown.empty()) {
    plan.old_setting = {};
    return plan;
  }
  const int64_t ranks = new_ranks;
  if (plan.global % ranks == 0) {
    plan.settings = settings_of(plan.global / ranks);
    plan.suggested = suggest(plan.settings, plan.old_setting.micro);
    return plan;
  }
  const int64_t samples = plan.global / ranks;
  const int64_t below = plan.global - samples * ranks;
  for (const int64_t each : {samples, samples + 1}) {
    if (each == 0) continue;
    plan.nearest.push_back({each * ranks, suggest(settings_of(each), plan.old_setting.micro)});
  }
  if (plan.nearest.size() == 2 && ranks - below < below) {
    std::swap(plan.nearest[0], plan.nearest[1]);
  }
  return plan;
}

ordered_json with_batch(ordered_json config, const BatchChoice& choice) {
  config[kTrainBatch] = choice.global;
  config[kMicroBatch] = choice.setting.micro;
  config[kAccumulation] = choice.setting.accumulation;
  return config;
}

std::string text_of(const BatchPlan& plan) {
  const std::string ranks = counted(plan.new_ranks, "rank");
  if (!plan.unknown.empty()) {
    return "batch sizes for " + ranks + " cannot be planned: " + plan.unknown + "\n";
  }
  std::string text = "global batch " + std::to_string(plan.global) + " = " +
                     text_of(plan.old_setting) + " x " + counted(plan.old_ranks, "rank") + "\n";
  if (!plan.suggested) {
    text += "no setting keeps it on " + ranks + ", since " + std::to_string(plan.global) +
            " is not a multiple of " + std::to_string(plan.new_ranks) + "; the nearest are\n";
    for (const BatchChoice& choice : plan.nearest) {
      text += "  global batch " + std::to_string(choice.global) + " = " + text_of(choice.setting) +
              " x " + ranks + "\n";
    }
    return text;
  }
  text += "on " + ranks + " it is kept by\n";
  for (const BatchSetting& setting : plan.settings) {
    text += "  " + text_of(setting);
    if (setting == *plan.suggested) {
      text += "  (suggested)";
    } else if (setting.micro > plan.old_setting.micro) {
      text += "  (needs more memory than before)";
    }
    text += "\n";
  }
  return text;
}

ordered_json json_of(const BatchPlan& plan) {
  ordered_json json{{"old_ranks", plan.old_ranks}, {"new_ranks", plan.new_ranks}};
  if (!plan.unknown.empty()) {
    json["unknown"] = plan.unknown;
    return json;
  }
  json[kTrainBatch] = plan.global;
  json["old"] = json_of(plan.old_setting);
  json["settings"] = ordered_json::array();
  for (const BatchSetting& setting : plan.settings) json["settings"].push_back(json_of(setting));
  json["suggested"] = plan.suggested ? json_of(*plan.suggested) : ordered_json(nullptr);
  json["nearest"] = ordered_json::array();
  for (const BatchChoice& choice : plan.nearest) {
    json["nearest"].push_back(with_batch(ordered_json::object(), choice));
  }
  return json;
}

}  // namespace dsckpt
