// Which batch settings keep the global batch when the number of ranks changes.
//
// DeepSpeed's rule: train_batch_size = train_micro_batch_size_per_gpu * gradient_accumulation_steps
// * data-parallel ranks (runtime/config.py _set_batch_related_parameters, _batch_assertion).
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "deepspeed/engine_config.h"

namespace dsckpt {

struct BatchSetting {
  int64_t micro = 0;         // train_micro_batch_size_per_gpu
  int64_t accumulation = 0;  // gradient_accumulation_steps

  bool operator==(const BatchSetting&) const = default;
};

// A global batch and how to run it on the new ranks.
struct BatchChoice {
  int64_t global = 0;  // train_batch_size
  BatchSetting setting;

  bool operator==(const BatchChoice&) const = default;
};

struct BatchPlan {
  uint32_t old_ranks = 0;
  uint32_t new_ranks = 0;
  // The reason why nothing can be planned: the configuration has no batch sizes, or they do not fit
  // the old ranks. Everything below is then empty. Else "".
  std::string unknown = {};

  int64_t global = 0;  // that of the old run
  BatchSetting old_setting = {};
  // All settings that keep it on the new ranks, by micro batch. Empty if the ranks do not divide
  // it.
  std::vector<BatchSetting> settings = {};
  // The one of `settings` with the largest micro batch that is not above the old run's. A larger
  // one may not fit a GPU's memory. There always is one: a micro batch of 1.
  std::optional<BatchSetting> suggested = {};
  // If `settings` is empty: the next smaller and the next larger global batch that the new ranks
  // divide. The closest comes first, or the smaller of two as close. Each has the setting that
  // would be suggested. No smaller one where there are more ranks than samples.
  std::vector<BatchChoice> nearest = {};

  // The batch to run: the old global batch if possible, else the nearest; nullopt if unknown.
  std::optional<BatchChoice> choice() const;
};

// `old_ranks` and `new_ranks`: data-parallel ranks, at least 1.
BatchPlan plan_batch(const EngineConfig& config, uint32_t old_ranks, uint32_t new_ranks);

// `config` with the three keys set; those that it has keep their places.
nlohmann::ordered_json with_batch(nlohmann::ordered_json config, const BatchChoice& choice);

// Several lines, ready to print, with a newline at their end.
std::string text_of(const BatchPlan& plan);
nlohmann::ordered_json json_of(const BatchPlan& plan);

}  // namespace dsckpt
