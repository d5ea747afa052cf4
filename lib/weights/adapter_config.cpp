#include "weights/adapter_config.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <memory>
#include <string_view>
#include <system_error>

#include "base/bytes.h"
#include "base/json.h"
#include "base/patterns.h"
#include "base/text.h"
#include "dsckpt/error.h"
#include "io/content_name.h"
#include "io/input_file.h"

namespace dsckpt {
namespace fs = std::filesystem;
using nlohmann::json;
namespace {

constexpr uint64_t kMaxConfigBytes = 16 << 20;

// Fields of LoraConfig with which LoRA is no longer a low-rank update.
constexpr std::array<std::string_view, 8> kOtherVariants{
    "use_qalora",    "use_bdlora",        "arrow_config", "alora_invocation_tokens",
    "velora_config", "monteclora_config", "kasa_config",  "layer_replication"};

// Prefixes of init_lora_weights that change the base before training: LoraLayer's pissa_init,
// corda_init, olora_init, loftq_init, lora_ga_init.
constexpr std::array<std::string_view, 5> kInitsThatChangeBase{"pissa", "corda", "olora", "loftq",
                                                               "lora_ga"};

bool is_set(const json& value) {
  if (value.is_boolean()) return value.get<bool>();
  return !value.is_null() && !((value.is_array() || value.is_object()) && value.empty());
}

const json& member_of(const json& config, std::string_view name) {
  static const json kNull;
  const auto found = config.find(name);
  return found == config.end() ? kNull : *found;
}

std::string lower_text(const json& value) {
  if (!value.is_string()) return "";
  std::string text = value.get<std::string>();
  std::transform(text.begin(), text.end(), text.begin(), [](char c) {
    return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  });
  return text;
}

bool is_or_ends_with(const std::string& key, const std::string& target) {
  return key == target || key.ends_with("." + target);
}

// BaseTuner._check_tied_modules ties no module of another name (EMBEDDING_LAYER_NAMES).
bool is_embedding_of_peft(const std::string& module) {
  return is_or_ends_with(module, "embed_tokens") || is_or_ends_with(module, "lm_head");
}

}  // namespace

std::optional<fs::path> find_adapter_config(const Checkpoint& checkpoint,
                                            const std::string& adapter,
                                            const AdapterOptions& options) {
  if (!options.config.empty()) return options.config;
  std::error_code failed;
  const fs::path& tag = checkpoint.tag_folder();
  std::vector<fs::path> folders{tag.parent_path() / adapter, tag / adapter, tag.parent_path(), tag};
  if (checkpoint.facts().from_weights()) folders = {tag};
  for (const fs::path& folder : folders) {
    const fs::path path = folder / kAdapterConfigName;
    if (fs::is_regular_file(stored_path(path).value_or(path), failed)) return path;
  }
  return std::nullopt;
}

std::optional<fs::path> adapter_config(const Checkpoint& checkpoint, const std::string& adapter,
                                       const AdapterOptions& options, const std::string& command) {
  const std::optional<fs::path> path = find_adapter_config(checkpoint, adapter, options);
  if (path && options.lora_alpha) {
    throw UsageError("--lora-alpha: " + path->string() + " has it already");
  }
  if (path || options.lora_alpha) return path;
  throw UsageError(command + ": there is no " + std::string(kAdapterConfigName) +
                   " beside the shards, and the tensors do not show lora_alpha")
      .with_hint("give the file with --peft-config, or the number with --lora-alpha");
}

json read_adapter_config(const fs::path& path) {
  const InputFile file(path);
  return in_context({.file = path.string()}, [&] {
    if (file.size() > kMaxConfigBytes) throw CorruptError({}, "is too long for a configuration");
    const std::vector<std::byte> bytes = file.read(0, file.size());
    json config = parse_json(as_text(bytes));
    if (!config.is_object() || !config.contains("peft_type")) {
      throw CorruptError({}, "is not a configuration of a PEFT adapter");
    }
    return config;
  });
}

LoraSettings::LoraSettings(const json& config, std::string file, bool own_base)
    : file_(std::move(file)) {
  const auto wrong = [&](std::string_view member) {
    return CorruptError({.file = file_, .member = std::string(member)},
                        "is " + dump(member_of(config, member)));
  };
  const json& type = member_of(config, "peft_type");
  const bool is_tokens = type == "TRAINABLE_TOKENS";
  if (type != "LORA" && !is_tokens) {
    throw UnsupportedError(
        {.file = file_, .member = "peft_type"},
        "is " + dump(type) + "; adapters of LORA and TRAINABLE_TOKENS are merged");
  }
  for (const std::string_view variant : kOtherVariants) {
    if (!is_set(member_of(config, variant))) continue;
    throw UnsupportedError({.file = file_, .member = std::string(variant)},
                           "is set: such an adapter is not a low-rank update of the base");
  }
  const std::string init = lower_text(member_of(config, "init_lora_weights"));
  const bool changes_base =
      std::any_of(kInitsThatChangeBase.begin(), kInitsThatChangeBase.end(),
                  [&](std::string_view start) { return init.starts_with(start); });
  if (changes_base && !own_base) {
    throw UnsupportedError({.file = file_, .member = "init_lora_weights"},
                           "is \"" + init + "\", which changes the base before it is trained on")
        .with_hint("--merge checkpoint takes the base that was trained on, if the run saved it");
  }
  const auto flag = [&](std::string_view name) {
    const json& value = member_of(config, name);
    if (!value.is_null() && !value.is_boolean()) throw wrong(name);
    return value.is_boolean() && value.get<bool>();
  };
  use_rslora_ = flag("use_rslora");
  fan_in_fan_out_ = flag("fan_in_fan_out");
  use_dora_ = flag("use_dora");
  ensures_tying_ = flag("ensure_weight_tying");
  const json& rank = member_of(config, "r");
  if (rank.is_number_integer()) rank_ = rank.get<int64_t>();
  const json& alpha = member_of(config, "lora_alpha");
  if (!is_tokens && !alpha.is_number()) throw wrong("lora_alpha");
  if (alpha.is_number()) alpha_ = alpha.get<double>();
  const auto texts = [&](std::string_view name) {
    std::vector<std::string> list;
    const json& value = member_of(config, name);
    if (!value.is_array()) return list;
    for (const json& each : value) {
      if (!each.is_string()) throw wrong(name);
      list.push_back(each.get<std::string>());
    }
    return list;
  };
  target_parameters_ = texts("target_parameters");
  modules_to_save_ = texts("modules_to_save");
  ensures_tying_ = ensures_tying_ && std::any_of(modules_to_save_.begin(), modules_to_save_.end(),
                                                 is_embedding_of_peft);
  rank_pattern_ = member_of(config, "rank_pattern");
  alpha_pattern_ = member_of(config, "alpha_pattern");
  token_indices_ = member_of(config, is_tokens ? "token_indices" : "trainable_token_indices");
}

// peft.utils.other.get_pattern_key takes the first match, but JSON here has lost the order.
std::optional<double> LoraSettings::by_pattern(const json& patterns, const std::string& key,
                                               std::string_view member) const {
  std::optional<double> found;
  if (!patterns.is_object()) return found;
  for (const auto& [pattern, value] : patterns.items()) {
    const std::unique_ptr<RE2> expression = compile_quietly("(.*\\.)?(" + pattern + ")");
    const Where where{.file = file_, .member = std::string(member)};
    if (!expression->ok()) {
      throw UnsupportedError(where, "'" + printable(pattern) + "': " + expression->error());
    }
    if (!RE2::FullMatch(key, *expression)) continue;
    if (!value.is_number()) throw CorruptError(where, "is " + dump(value));
    if (found && *found != value.get<double>()) {
      throw UnsupportedError(where, "has two patterns that fit '" + key + "'");
    }
    found = value.get<double>();
  }
  return found;
}

std::optional<int64_t> LoraSettings::rank(const std::string& key) const {
  if (const auto found = by_pattern(rank_pattern_, key, "rank_pattern")) {
    return static_cast<int64_t>(*found);
  }
  return rank_;
}

double LoraSettings::scaling(const std::string& key, int64_t rank) const {
  const std::optional<int64_t> said = this->rank(key);
  if (said && *said != rank) {
    throw InconsistentError(
        {.file = file_, .member = "r"},
        "is " + std::to_string(*said) + ", the tensors have rank " + std::to_string(rank));
  }
  const double alpha = by_pattern(alpha_pattern_, key, "alpha_pattern").value_or(alpha_);
  const auto wide = static_cast<double>(rank);
  return use_rslora_ ? alpha / std::sqrt(wide) : alpha / wide;
}

bool is_in_module(const std::string& tensor, const std::string& end) {
  for (size_t dot = tensor.find('.'); dot != tensor.npos; dot = tensor.find('.', dot + 1)) {
    if (std::string_view(tensor).substr(0, dot).ends_with(end)) return true;
  }
  return false;
}

bool LoraSettings::saves_module_of(const std::string& tensor) const {
  return std::any_of(modules_to_save_.begin(), modules_to_save_.end(),
                     [&](const std::string& end) { return is_in_module(tensor, end); });
}

bool LoraSettings::targets_parameter(const std::string& key) const {
  return std::any_of(target_parameters_.begin(), target_parameters_.end(),
                     [&](const std::string& target) { return is_or_ends_with(key, target); });
}

bool LoraSettings::has_token_indices() const {
  if (!token_indices_.is_object()) return !token_indices_.is_null() && !token_indices_.empty();
  return std::any_of(token_indices_.begin(), token_indices_.end(),
                     [](const json& indices) { return !indices.empty(); });
}

std::vector<int64_t> LoraSettings::token_indices(const std::string& module) const {
  const json* list = &token_indices_;
  if (token_indices_.is_object()) {
    list = nullptr;
    for (const auto& [target, indices] : token_indices_.items()) {
      if (is_or_ends_with(module, target)) list = &indices;
    }
  }
  std::vector<int64_t> rows;
  if (list == nullptr || !list->is_array()) return rows;
  for (const json& index : *list) {
    if (!index.is_number_integer()) {
      throw CorruptError({.file = file_, .member = "trainable_token_indices"},
                         "has " + dump(index));
    }
    rows.push_back(index.get<int64_t>());
  }
  return rows;
}

}  // namespace dsckpt
