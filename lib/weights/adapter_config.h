// The part of a PEFT adapter's adapter_config.json that decides how the adapter is merged.
#pragma once

#include <cstdint>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "checkpoint/checkpoint.h"
#include "dsckpt/weights.h"

namespace dsckpt {

inline constexpr std::string_view kAdapterConfigName = "adapter_config.json";

// options.config, else the file of the adapter `adapter`, beside the shards or in the adapter's own
// folder. An adapter that is not called "default" has a folder of its own.
std::optional<std::filesystem::path> find_adapter_config(const Checkpoint& checkpoint,
                                                         const std::string& adapter,
                                                         const AdapterOptions& options);
// The same for `command`, "--peft". Throws UsageError unless there is either a file or
// options.lora_alpha.
std::optional<std::filesystem::path> adapter_config(const Checkpoint& checkpoint,
                                                    const std::string& adapter,
                                                    const AdapterOptions& options,
                                                    const std::string& command);

// Throws IoError, and CorruptError for a file that is not an adapter configuration.
nlohmann::json read_adapter_config(const std::filesystem::path& path);

// True if the tensor is in a module whose name ends so, as in peft's _set_trainable.
bool is_in_module(const std::string& tensor, const std::string& end);

// The LoRA settings (peft.LoraConfig) that decide the result of merge_and_unload(). Keys are names
// of modules, or of parameters, without base_model.model.
class LoraSettings {
 public:
  // Reads the adapter's configuration from `file`. `own_base` is true if the base is the model that
  // was trained; some initialisations change it. Throws UnsupportedError for methods other than
  // LoRA and trainable tokens, and for variants of LoRA whose weights are not low-rank updates.
  // Throws CorruptError for values of other kinds.
  LoraSettings(const nlohmann::json& config, std::string file, bool own_base);
  // Without a configuration: all other settings are peft's defaults.
  explicit LoraSettings(double lora_alpha) : alpha_(lora_alpha) {}

  // LoraLayer.scaling of a layer of rank `rank`: lora_alpha / rank, or with use_rslora /
  // sqrt(rank). Throws InconsistentError if the configuration has another rank, UnsupportedError if
  // two patterns contradict each other.
  double scaling(const std::string& key, int64_t rank) const;
  // The rank in the configuration.
  std::optional<int64_t> rank(const std::string& key) const;

  bool fan_in_fan_out() const { return fan_in_fan_out_; }
  std::optional<bool> use_dora() const { return use_dora_; }
  // Ends of the names of modules that the adapter has trained copies of, if the model has them.
  // peft adds some that many models lack ("score").
  const std::vector<std::string>& modules_to_save() const { return modules_to_save_; }
  // True if they are those of a module that this tensor is in.
  bool saves_module_of(const std::string& tensor) const;
  // True if rows of embeddings were trained.
  bool has_token_indices() const;
  // True if trained copies of tied modules are tied, too.
  bool ensures_tying() const { return ensures_tying_; }
  // True if LoRA is on the parameter itself (target_parameters).
  bool targets_parameter(const std::string& key) const;
  // The rows of a module's weight that the adapter replaces, in its order; empty if there are none.
  std::vector<int64_t> token_indices(const std::string& module) const;
  // "" without a configuration.
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
  std::vector<std::string> modules_to_save_;
  std::vector<std::string> target_parameters_;
  nlohmann::json rank_pattern_;
  nlohmann::json alpha_pattern_;
  nlohmann::json token_indices_;
};

}  // namespace dsckpt
