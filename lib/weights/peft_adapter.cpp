#include "weights/peft_adapter.h"

#include <re2/re2.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <string_view>
#include <system_error>
#include <vector>

#include "base/bytes.h"
#include "base/json.h"
#include "dsckpt/error.h"
#include "format/safetensors.h"
#include "io/content_name.h"
#include "job/job_impl.h"
#include "job/neighbours.h"
#include "weights/adapter_config.h"
#include "weights/selection.h"
#include "weights/weights_format.h"
#include "weights/weights_report.h"

namespace dsckpt {
namespace fs = std::filesystem;
using nlohmann::json;
namespace {

constexpr std::string_view kModelName = "adapter_model.safetensors";
constexpr std::string_view kModulesToSave = "modules_to_save";
// Methods that learn a prompt have PeftModel.prompt_encoder, a dict of adapters.
constexpr std::string_view kPromptEncoder = "prompt_encoder.";
constexpr std::string_view kDefaultAdapter = "default";

// Prefixes of tuners' parameters: `prefix` in peft's tuners that keep a dict of adapters in each
// layer, and save it like BaseTuner.
// clang-format off
constexpr std::array<std::string_view, 24> kTuners{
    "lora_", "ia3_", "hada_", "lokr_", "oft_", "boft_", "hra_", "bone_", "miss_", "c3a_", "road_",
    "fourierft_", "waveft_", "ln_tuning_", "beft_", "deft_", "delora_", "glora_", "gralora_",
    "hira_", "lily_", "psoft_", "trainable_tokens_", "vera_lambda_"};
// clang-format on

// Prefixes of tuners that save something else (_get_adapter_state_dict,
// _remove_adapter_name_from_key), or that were not tested.
// clang-format off
constexpr std::array<std::string_view, 13> kOtherTuners{
    "adamss_", "vblora_", "unilora_", "tinylora_", "randlora_", "frod_", "shira_", "peanut_",
    "xlora_", "supertuning_", "adaption_prompt_", "poly_", "pvera_lambda_"};
// clang-format on

std::vector<std::string> split(const std::string& name) {
  std::vector<std::string> parts;
  size_t begin = 0;
  for (size_t end = name.find('.'); end != name.npos; end = name.find('.', begin)) {
    parts.push_back(name.substr(begin, end - begin));
    begin = end + 1;
  }
  parts.push_back(name.substr(begin));
  return parts;
}

std::string join(const std::vector<std::string>& parts) {
  std::string name;
  for (const std::string& part : parts) name += (name.empty() ? "" : ".") + part;
  return name;
}

bool is_tuner(std::string_view part) {
  return std::any_of(kTuners.begin(), kTuners.end(),
                     [&](std::string_view prefix) { return part.starts_with(prefix); });
}

// Returns whether the whole model shares this tensor: the prompt, or VeRA's projections for all
// layers.
bool is_of_model(const std::string& name) {
  return name.starts_with(kPromptEncoder) || name.starts_with("base_model.vera_A.") ||
         name.starts_with("base_model.vera_B.");
}

struct AdapterTensor {
  std::string saved;
  const ChosenTensor* source;
};

// The trained part of an adapter.
struct Adapter {
  std::string name;    // "default"
  std::string folder;  // "" or "NAME/", below the output
  std::vector<AdapterTensor> tensors;
  bool has_biases = false;
};

// Returns the names of the trained adapters, sorted.
std::set<std::string> adapters_of(const Checkpoint& checkpoint,
                                  const std::vector<ChosenTensor>& chosen) {
  std::set<std::string> names;
  for (const auto& [param, tensor, made] : chosen) {
    const auto name = adapter_tensor_name(tensor.name);
    if (name && may_be_trained(checkpoint, *param)) names.insert(name->adapter);
  }
  if (names.empty()) {
    for (const auto& [param, tensor, made] : chosen) {
      if (!is_of_unsaved_method(tensor.name) || !may_be_trained(checkpoint, *param)) continue;
      throw UnsupportedError({.tensor = tensor.name},
                             "belongs to a PEFT method that does not save its tensors themselves");
    }
    throw UsageError("--peft: no trained parameter is part of a PEFT adapter")
        .with_hint("zero-to-fp32 CHECKPOINT OUTPUT_DIR writes all of the weights");
  }
  return names;
}

// Returns the name under which peft saves this part of a prompt encoder. Other parts only compute
// the prompt. See peft.tuners.tuners_utils.BasePromptEncoder, MultitaskPromptEmbedding.
std::optional<std::string> saved_prompt_part(std::string_view part) {
  if (part == "embedding.weight") return "prompt_embeddings";
  if (part == "prefix_task_cols" || part == "prefix_task_rows") return std::string(part);
  return std::nullopt;
}

// The tensors that may belong to adapters.
struct NamedTensors {
  explicit NamedTensors(const std::vector<ChosenTensor>& chosen) : tensors(chosen) {
    for (const ChosenTensor& each : chosen) {
      const std::string& name = each.tensor.name;
      names.insert(name);
      in_adapters.push_back(adapter_tensor_name(name));
      const size_t dot = name.rfind('.');
      if (in_adapters.back() || dot == name.npos) continue;
      const std::string module = name.substr(0, dot);
      modules[module.substr(module.rfind('.') + 1)].insert(module);
    }
  }

  const std::vector<ChosenTensor>& tensors;
  std::vector<std::optional<AdapterTensorName>> in_adapters;  // of each tensor
  std::set<std::string_view> names;
  std::map<std::string, std::set<std::string>> modules;  // outside adapters, by last part
};

// The trained rows of tied embeddings that peft saves. The engine has them under the name of each
// module, peft's save_pretrained only those of the input embeddings
// (TrainableTokensWrapper.adapter_state_dict).
class SavedRows {
 public:
  explicit SavedRows(const NamedTensors& all) {
    for (const ChosenTensor& each : all.tensors) {
      if (!are_rows(each)) continue;
      const ChosenTensor*& saved = saved_[owner_of(each)];
      if (saved == nullptr || is_of_output(*saved)) saved = &each;
    }
  }

  bool leave_out(const ChosenTensor& each) const {
    return are_rows(each) && saved_.at(owner_of(each)) != &each;
  }

 private:
  static bool are_rows(const ChosenTensor& each) {
    return each.tensor.name.find(".trainable_tokens_delta.") != std::string::npos;
  }
  static bool is_of_output(const ChosenTensor& each) {
    const std::string& name = each.tensor.name;
    return name.find(".lm_head.") != name.npos || name.find(".embed_out.") != name.npos;
  }
  static std::string owner_of(const ChosenTensor& each) {
    return each.param->alias_of.empty() ? each.param->name : each.param->alias_of;
  }

  std::map<std::string, const ChosenTensor*> saved_;  // by owner
};

Adapter find_adapter(const Checkpoint& checkpoint, const NamedTensors& all,
                     const std::string& adapter, std::set<std::string>& left_out) {
  Adapter found{.name = adapter, .folder = {}, .tensors = {}};
  const SavedRows rows(all);
  for (size_t i = 0; i < all.tensors.size(); ++i) {
    const ChosenTensor& each = all.tensors[i];
    const std::optional<AdapterTensorName>& name = all.in_adapters[i];
    if (name && name->adapter != adapter) continue;
    if (name && rows.leave_out(each)) continue;
    std::string saved = name ? name->saved : each.tensor.name;
    if (name) {
      if (name->saved.empty()) {
        throw UnsupportedError({.tensor = each.tensor.name},
                               "computes the adapter's prompt from its embedding; peft saves that "
                               "prompt, which only the model can compute");
      }
    } else if (!may_be_trained(checkpoint, *each.param) || !checkpoint.facts().frozen_known) {
      continue;
    } else if (!saved.ends_with(".bias")) {
      left_out.insert(each.tensor.name);
      continue;
    }
    if (!is_of_model(each.tensor.name)) check_peft_prefix(saved, "--peft");
    found.has_biases = found.has_biases || !name;
    found.tensors.push_back({std::move(saved), &each});
  }
  return found;
}

// Returns the note on trained parameters outside adapters, with the command that writes them.
std::string left_out_note(const fs::path& path, const std::set<std::string>& names) {
  std::string pattern;
  for (const std::string& name : names) {
    pattern += (pattern.empty() ? "^(" : "|") + RE2::QuoteMeta(name);
  }
  constexpr size_t kMostPattern = 600;
  const std::string chosen =
      pattern.size() > kMostPattern ? " --include ." : " --include " + shell_word(pattern + ")$");
  return counted(names.size(), "trained parameter") + (names.size() == 1 ? " is" : " are") +
         " not part of the adapter and left out: " + some_of({names.begin(), names.end()}) +
         "; `zero-to-fp32 " + shell_word(path.string()) + " OUT" + chosen + "` writes " +
         (names.size() == 1 ? "it" : "them");
}

// Returns the rank of LoRA's tensor, if its shape begins with it.
std::optional<int64_t> rank_of(const AdapterTensor& tensor) {
  const Shape& shape = tensor.source->tensor.source.shape();
  const bool tells =
      tensor.saved.ends_with(".lora_A.weight") || tensor.saved.ends_with(".lora_embedding_A");
  return tells && !shape.empty() ? std::optional(shape.front()) : std::nullopt;
}

std::string without(std::string text, std::string_view part) {
  for (size_t at = text.find(part); at != text.npos; at = text.find(part)) {
    text.erase(at, part.size());
  }
  return text;
}

// Returns whether LoRA targets parameters of this tensor's module. Such a parameter may have
// several experts, with `r` rows for each. See LoraConfig.target_parameters,
// peft.tuners.lora.layer.ParamWrapper.
bool is_on_parameters(const json& config, const AdapterTensor& tensor) {
  const auto targets = config.find("target_parameters");
  if (targets == config.end() || !targets->is_array()) return false;
  const std::string name = without(tensor.saved, ".base_layer");
  const std::string module = "." + name.substr(0, name.rfind(".lora_"));
  return std::any_of(targets->begin(), targets->end(), [&](const json& target) {
    if (!target.is_string()) return false;
    const std::string text = target.get<std::string>();
    const size_t dot = text.rfind('.');
    return dot == text.npos || module.ends_with("." + text.substr(0, dot));
  });
}

// Another adapter's configuration would load and give wrong results.
void check_rank(const fs::path& path, const json& config, const Adapter& adapter) {
  const auto patterns = config.find("rank_pattern");
  const bool one_rank = patterns == config.end() || patterns->empty();
  const auto rank = config.find("r");
  if (!one_rank || rank == config.end() || !rank->is_number_integer()) return;
  for (const AdapterTensor& tensor : adapter.tensors) {
    const auto has = rank_of(tensor);
    const auto r = rank->get<int64_t>();
    if (!has || *has == r) continue;
    if (r > 0 && *has % r == 0 && is_on_parameters(config, tensor)) continue;
    throw InconsistentError({.file = path.string(), .member = "r", .tensor = tensor.saved},
                            "is " + rank->dump() + ", the tensor has rank " + std::to_string(*has));
  }
}

// Derives the configuration of a LoRA adapter from its tensors.
class Derivation {
 public:
  Derivation(const NamedTensors& all, const Adapter& adapter) : all_(all), adapter_(adapter) {}

  json config(double lora_alpha) {
    for (const AdapterTensor& tensor : adapter_.tensors) add(tensor);
    if (ranks_.size() != 1) {
      throw UsageError("--peft: the tensors do not show a single rank of LoRA")
          .with_hint("give the adapter's configuration with --peft-config");
    }
    const bool whole = lora_alpha == std::floor(lora_alpha) && std::abs(lora_alpha) < 1e15;
    return {{"peft_type", "LORA"},
            {"base_model_name_or_path", nullptr},
            {"task_type", nullptr},
            {"inference_mode", true},
            {"r", *ranks_.begin()},
            {"lora_alpha", whole ? json(static_cast<int64_t>(lora_alpha)) : json(lora_alpha)},
            {"lora_dropout", 0.0},
            {"target_modules", targets()},
            {"modules_to_save", to_save_.empty() ? json() : json(to_save_)},
            {"bias", bias()},
            {"use_dora", use_dora_}};
  }

 private:
  void add(const AdapterTensor& tensor) {
    const std::vector<std::string> stored = split(tensor.source->tensor.name);
    const auto at = std::find_if(stored.begin(), stored.end(), [](const std::string& part) {
      return is_tuner(part) || part == kModulesToSave;
    });
    if (at == stored.end()) return;
    const std::string module = join({stored.begin(), at});
    if (*at == kModulesToSave) {
      to_save_.insert(*std::prev(at));
      return;
    }
    if (!at->starts_with("lora_")) {
      throw UsageError("--peft: '" + tensor.saved + "' is not of LoRA")
          .with_hint("give the adapter's configuration with --peft-config");
    }
    use_dora_ = use_dora_ || *at == "lora_magnitude_vector";
    modules_.insert(module);
    if (is_of_parameters(module)) {
      throw UsageError("--peft: '" + tensor.saved +
                       "' is on the parameters of a module, and no tensor shows its rank")
          .with_hint("give the adapter's configuration with --peft-config");
    }
    if (const auto rank = rank_of(tensor)) ranks_.insert(*rank);
  }

  // Returns whether the module wraps parameters, which have different names than those of layers.
  bool is_of_parameters(const std::string& module) const {
    const std::string base = module + ".base_layer.";
    for (auto name = all_.names.lower_bound(base);
         name != all_.names.end() && name->starts_with(base); ++name) {
      if (*name != base + "weight" && *name != base + "bias") return true;
    }
    return false;
  }

  // Returns the last parts of the modules' names, as users give them. If other modules have the
  // same last part, the names are whole.
  std::set<std::string> targets() const {
    std::map<std::string, std::vector<std::string>> by_last;
    for (const std::string& module : modules_) {
      by_last[module.substr(module.rfind('.') + 1)].push_back(module);
    }
    std::set<std::string> targets;
    for (const auto& [last, modules] : by_last) {
      const auto same_end = all_.modules.find(last);
      size_t others = same_end == all_.modules.end() ? 0 : same_end->second.size();
      for (const std::string& module : modules) {
        if (others > 0 && same_end->second.contains(module)) --others;
      }
      for (const std::string& module : modules) {
        targets.insert(others == 0 ? last : module.substr(kPeftPrefix.size()));
      }
    }
    return targets;
  }

  std::string bias() const {
    if (!adapter_.has_biases) return "none";
    for (const AdapterTensor& tensor : adapter_.tensors) {
      if (adapter_tensor_name(tensor.source->tensor.name)) continue;
      if (tensor.saved.find(".base_layer.") == tensor.saved.npos) return "all";
    }
    return "lora_only";
  }

  const NamedTensors& all_;
  const Adapter& adapter_;
  std::set<std::string> modules_;
  std::set<std::string> to_save_;
  std::set<int64_t> ranks_;
  bool use_dora_ = false;
};

void add_config(InputFiles& inputs, const Checkpoint& checkpoint, const AdapterOptions& options,
                const NamedTensors& all, const Adapter& adapter, PlanBuilder& plan,
                std::vector<std::string>& notes) {
  const std::string output = adapter.folder + std::string(kAdapterConfigName);
  if (const auto path = adapter_config(checkpoint, adapter.name, options, "--peft")) {
    check_rank(*path, read_adapter_config(*path), adapter);
    return lay_out_neighbours(inputs, {{*path, output}}, plan);
  }
  const std::string text = Derivation(all, adapter).config(*options.lora_alpha).dump(2) + "\n";
  plan.put_literal(plan.add_output(output, text.size()), 0, text);
  notes.push_back(output +
                  " is derived from the tensors; use_rslora, fan_in_fan_out and alpha_pattern get "
                  "peft's defaults");
}

void lay_out_adapter(const Adapter& adapter, PlanBuilder& plan, WeightsSplit& split) {
  const std::string path = adapter.folder + std::string(kModelName);
  std::vector<NamedSource> sources;
  WeightsSplit::File file{path, {}};
  for (const AdapterTensor& tensor : adapter.tensors) {
    const TensorSource& value = tensor.source->tensor.source;
    sources.push_back({tensor.saved, value});
    file.tensors.push_back({tensor.saved, value, ""});
    split.total_size += value.nbytes();
  }
  split.files.push_back(std::move(file));
  lay_out_safetensors(plan, path, std::move(sources), {{"format", "pt"}});
}

}  // namespace

std::optional<AdapterTensorName> adapter_tensor_name(const std::string& name) {
  std::vector<std::string> parts = split(name);
  if (name.starts_with(kPromptEncoder) && parts.size() > 2) {
    const std::string part = join({parts.begin() + 2, parts.end()});
    return AdapterTensorName{parts[1], saved_prompt_part(part).value_or("")};
  }
  if (is_of_model(name) && parts.size() == 3) {
    return AdapterTensorName{parts[2], parts[0] + "." + parts[1]};
  }
  for (size_t i = 0; i + 1 < parts.size(); ++i) {
    const bool is_saved_module = parts[i] == kModulesToSave;
    if (!is_saved_module && !is_tuner(parts[i])) continue;
    const std::string adapter = parts[i + 1];
    const auto at = parts.begin() + static_cast<std::ptrdiff_t>(i);
    // peft saved DoRA's vector under this name before it was a module.
    if (*at == "lora_magnitude_vector" && parts.back() == "weight") parts.pop_back();
    parts.erase(is_saved_module ? at : at + 1, at + 2);
    return AdapterTensorName{adapter, join(parts)};
  }
  return std::nullopt;
}

std::optional<AdapterPart> adapter_part(const std::string& name, bool names_adapter) {
  const std::vector<std::string> parts = split(name);
  if (is_of_model(name))
    return AdapterPart{.method = parts[name.starts_with(kPromptEncoder) ? 0 : 1]};
  const auto at = std::find_if(parts.begin(), parts.end(), [](const std::string& part) {
    return part == kModulesToSave || is_tuner(part);
  });
  if (at == parts.end()) return std::nullopt;
  const ptrdiff_t behind = names_adapter ? 2 : 1;
  if (parts.end() - at < behind) return std::nullopt;
  return AdapterPart{.module = join({parts.begin(), at}),
                     .method = *at,
                     .member = join({at + behind, parts.end()})};
}

std::string trained_adapter_tensor(const Checkpoint& checkpoint) {
  if (checkpoint.facts().from_weights()) return "";
  for (const Param& param : checkpoint.params()) {
    // DeepSpeed's own OptimizedLinear has names such as lora_weight_1 too.
    const bool is_of_peft =
        param.name.find("base_model.") != param.name.npos || is_of_model(param.name);
    if (param.kind != ParamKind::trainable || !is_of_peft) continue;
    if (adapter_tensor_name(param.name)) return param.name;
  }
  return "";
}

bool is_of_unsaved_method(const std::string& name) {
  const std::vector<std::string> parts = split(name);
  return std::any_of(parts.begin(), parts.end(), [](std::string_view part) {
    return std::any_of(kOtherTuners.begin(), kOtherTuners.end(),
                       [&](std::string_view prefix) { return part.starts_with(prefix); });
  });
}

bool may_be_trained(const Checkpoint& checkpoint, const Param& param) {
  return param.kind == ParamKind::trainable || !checkpoint.facts().frozen_known;
}

void check_peft_prefix(const std::string& name, const std::string& command) {
  if (name.starts_with(kPeftPrefix)) return;
  throw UsageError(command + ": '" + name + "' does not begin with " + std::string(kPeftPrefix) +
                   ", as names in a PeftModel do")
      .with_hint("--strip-prefix takes a wrapper's prefix off");
}

Job plan_adapter(const Source& source, const WeightsOptions& weights,
                 const AdapterOptions& options) {
  const Checkpoint& checkpoint = *source->checkpoint;
  Job::Impl job = job_of(source);
  for (const IncompleteParam& param : choose_incomplete(checkpoint, weights)) {
    if (!adapter_tensor_name(param.name)) continue;
    throw InconsistentError(
        {.file = checkpoint.lost_files()[param.lost.front()].display, .tensor = param.name},
        "is part of the adapter, and of no use without it");
  }
  const std::vector<ChosenTensor> chosen = choose_tensors(checkpoint, weights, job.notes);
  const std::set<std::string> names = adapters_of(checkpoint, chosen);
  const NamedTensors all(chosen);
  if (names.size() > 1 && !options.config.empty()) {
    throw UsageError("--peft-config: several adapters were trained: '" + *names.begin() +
                     "' and '" + *names.rbegin() + "'")
        .with_hint("choose one with --include");
  }
  PlanBuilder plan;
  WeightsSplit split;
  std::set<std::string> left_out;
  for (const std::string& name : names) {
    Adapter adapter = find_adapter(checkpoint, all, name, left_out);
    // save_pretrained writes the default adapter at the top, and the others in their own folders.
    if (names.size() > 1 && name != kDefaultAdapter) adapter.folder = name + "/";
    lay_out_adapter(adapter, plan, split);
    add_config(*source->inputs, checkpoint, options, all, adapter, plan, job.notes);
  }
  set_plan(job, plan);
  for (const std::string& name : left_out) {
    job.left_out.push_back("not of the adapter\t" + printable(name));
  }
  if (!left_out.empty()) job.notes.push_back(left_out_note(source->path, left_out));
  job.what = summary_of(split);
  auto report = std::make_shared<WeightsReport>(std::move(split), std::vector<StateFiles>());
  report->set_kind(kSafetensors, false, names.size() == 1);
  if (source->options.allow_missing) report->add_salvage(checkpoint, {});
  job.report = std::move(report);
  return Job(std::move(job));
}

}  // namespace dsckpt
