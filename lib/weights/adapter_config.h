// adapter_config.json of a PEFT adapter, as far as it says how the adapter is merged.
#pragma once

#include <cstdint>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "checkpoint/checkpoint.h"

namespace dsckpt {

inline constexpr std::string_view kAdapterConfigName = "adapter_config.json";

// The file of the adapter `adapter` beside the shards, or in the folder of its own files; peft has
// a folder for each adapter that is not called "default".
std::optional<std::filesystem::path> adapter_config_beside(const Checkpoint& checkpoint,
                                                           const std::string& adapter);

// Throws IoError, and CorruptError for what is no configuration of an adapter.
nlohmann::json read_adapter_config(const std::filesystem::path& path);

// The settings of LoRA (peft.LoraConfig) that decide what merge_and_unload() computes. Keys are
// names of modules, or of parameters, without base_model.model.
class LoraSettings {
 public:
  // Of the adapter's configuration in `file`. `own_base`: whether the base is the one that was
  // trained on, which some initialisations change. Throws UnsupportedError for what cannot be
  // merged: other methods than LoRA and trainable tokens, and variants of LoRA whose weights are no
  // low-rank update; CorruptError for values of other kinds.
  LoraSettings(const nlohmann::json& config, std::string file, bool own_base);
  // Without a configuration: all else are peft's defaults.
  explicit LoraSettings(double lora_alpha) : alpha_(lora_alpha) {}

  // LoraLayer.scaling of a layer of rank `rank`: lora_alpha / rank, or with use_rslora /
  // sqrt(rank). Throws InconsistentError where the configuration says another rank,
  // UnsupportedError where two patterns say two things.
  double scaling(const std::string& key, int64_t rank) const;
  // The rank that the configuration says.
  std::optional<int64_t> rank(const std::string& key) const;

  bool fan_in_fan_out() const { return fan_in_fan_out_; }
  std::optional<bool> use_dora() const { return use_dora_; }
  // Of tied modules the copies that are trained are tied, too.
  bool ensures_tying() const { return ensures_tying_; }
  // Whether LoRA is on the parameter itself (target_parameters).
  bool targets_parameter(const std::string& key) const;
  // The rows of a module's weight that the adapter replaces, in its order; empty if there are none.
  std::vector<int64_t> token_indices(const std::string& module) const;
  const std::string& file() const { return file_; }

 private:
  std::optional<double> by_pattern(const nlohmann::json& patterns, const std::string& key,
                                   std::string_view member) const;

  std::string file_;
  std::optional<int64_t> rank_;
  double alpha_ = 8;
  bool use_rslora_ = false;
  bool fan_in_fan_out_ = false;
  std::optional<bool> use_dora_ = {};  // nullopt: nothing says
  bool ensures_tying_ = false;
  std::vector<std::string> target_parameters_;
  nlohmann::json rank_pattern_;
  nlohmann::json alpha_pattern_;
  nlohmann::json token_indices_;
};

}  // namespace dsckpt
