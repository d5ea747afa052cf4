#include "weights/plan_weights.h"

#include <re2/re2.h>

#include <algorithm>
#include <array>
#include <string_view>
#include <system_error>
#include <unordered_map>
#include <unordered_set>

#include "base/error.h"
#include "base/kernels.h"
#include "job/neighbours.h"
#include "weights/key_map.h"
#include "weights/state_files.h"

namespace dsckpt {
namespace fs = std::filesystem;
namespace {

// Several patterns, any of which may be found in a name.
class Patterns {
 public:
  Patterns(const std::vector<std::string>& patterns, std::string_view option) {
    for (const std::string& pattern : patterns) {
      RE2::Options quiet;
      quiet.set_log_errors(false);
      patterns_.push_back(std::make_unique<RE2>(pattern, quiet));
      if (!patterns_.back()->ok()) {
        throw UsageError(std::string(option) + " '" + pattern + "': " + patterns_.back()->error());
      }
    }
  }

  bool empty() const { return patterns_.empty(); }
  bool find_in(const std::string& name) const {
    return std::any_of(patterns_.begin(), patterns_.end(),
                       [&](const auto& pattern) { return RE2::PartialMatch(name, *pattern); });
  }

 private:
  std::vector<std::unique_ptr<RE2>> patterns_;
};

// Whether a file of a Hugging Face model folder is needed beside the weights: configurations, what
// the transformers library's tokenizers and processors name their files, and the Python code of
// models that bring their own.
bool is_model_companion(std::string_view name) {
  constexpr std::array<std::string_view, 24> kBeginnings{
      "config.json",
      "generation_config.json",
      "adapter_config.json",
      "tokenizer",
      "special_tokens_map",
      "added_tokens",
      "vocab",
      "merges.txt",
      "spiece.model",
      "sentencepiece",
      "spm",
      "source.spm",
      "target.spm",
      "bpe.codes",
      "dict.txt",
      "normalizer.json",
      "entity_vocab",
      "byte_maps",
      "chat_template",
      "preprocessor_config",
      "processor_config",
      "image_processor",
      "video_preprocessor_config",
      "feature_extractor",
  };
  constexpr std::array<std::string_view, 6> kCode{"configuration_",    "modeling_",
                                                  "tokenization_",     "processing_",
                                                  "image_processing_", "feature_extraction_"};
  const auto starts = [&](std::string_view start) { return name.starts_with(start); };
  if (name.ends_with(".py")) return std::any_of(kCode.begin(), kCode.end(), starts);
  return name.ends_with(".tiktoken") || name.ends_with(".jinja") ||
         std::any_of(kBeginnings.begin(), kBeginnings.end(), starts);
}

void add_companions(InputFiles& inputs, const fs::path& folder, PlanBuilder& plan) {
  std::error_code failed;
  const fs::file_status status = fs::status(folder, failed);
  if (status.type() == fs::file_type::not_found) {
    throw UsageError(folder.string() + ": there is no such folder");
  }
  if (!failed && !fs::is_directory(status)) throw UsageError(folder.string() + ": is not a folder");
  std::vector<Neighbour> files;
  fs::directory_iterator it(folder, failed);
  for (const fs::directory_iterator end; !failed && it != end; it.increment(failed)) {
    std::error_code ignored;
    const fs::path path = content_path(it->path());
    const std::string name = path.filename().string();
    if (it->is_regular_file(ignored) && is_model_companion(name)) {
      refuse_two_forms(path);
      files.push_back({path, name});
    }
  }
  if (failed) throw IoError({.file = folder.string()}, "cannot list", failed.value());
  std::sort(files.begin(), files.end(),
            [](const Neighbour& a, const Neighbour& b) { return a.destination < b.destination; });
  if (std::none_of(files.begin(), files.end(),
                   [](const Neighbour& file) { return file.destination == "config.json"; })) {
    throw UsageError(folder.string() + ": has no config.json");
  }
  lay_out_neighbours(inputs, files, plan);
}

class Selection {
 public:
  explicit Selection(const WeightsOptions& options)
      : options_(options),
        include_(options.include, "--include"),
        exclude_(options.exclude, "--exclude"),
        keep_fp32_(options.keep_fp32, "--keep-fp32") {}

  bool wants(const std::string& name, ParamKind kind) const {
    if (options_.exclude_frozen_parameters && kind == ParamKind::frozen) return false;
    if (!include_.empty() && !include_.find_in(name)) return false;
    return !exclude_.find_in(name);
  }

  TensorSource cast(const Param& param) const {
    const DType stored = param.weight.dtype();
    const TensorSource weight = without_padding(param, param.weight);
    if (!is_floating_point(stored)) return weight;
    const std::optional<DType> target =
        keep_fp32_.find_in(param.name) ? DType::float32 : options_.dtype;
    if (!target || *target == stored) return weight;
    if (!can_convert(stored, *target)) {
      throw UnsupportedError({.tensor = param.name}, "cannot convert " +
                                                         std::string(torch_name(stored)) + " to " +
                                                         std::string(torch_name(*target)));
    }
    return weight.to(*target);
  }

 private:
  const WeightsOptions& options_;
  Patterns include_;
  Patterns exclude_;
  Patterns keep_fp32_;
};

}  // namespace

std::vector<ChosenTensor> choose_tensors(const Checkpoint& checkpoint,
                                         const WeightsOptions& options,
                                         std::vector<std::string>& notes) {
  if (options.exclude_frozen_parameters && !checkpoint.facts().frozen_known) {
    throw std::move(
        UnsupportedError({.file = checkpoint.tag_folder().string()},
                         checkpoint.facts().from_weights
                             ? "does not tell which parameters are frozen: it has weights alone"
                             : "does not tell which parameters are frozen: it is of stage 0 in "
                               "fp32, and trained ones have the same shapes"))
        .with_hint("name them with --exclude");
  }
  const Selection selection(options);
  KeyMap key_map = options.key_map.empty() ? KeyMap() : KeyMap::read(options.key_map);
  std::vector<ChosenTensor> tensors;
  std::unordered_set<std::string> names;
  // From what owns the data in the checkpoint, and the type it is written as, to what owns it here:
  // an alias stands alone when its owner is left out or becomes another type.
  std::unordered_map<std::string, std::pair<DType, std::string>> written;
  for (const Param& param : checkpoint.params()) {
    if (!selection.wants(param.name, param.kind)) continue;
    OutputTensor tensor{key_map.rename(without_prefix(param.name, options.strip_prefix)),
                        selection.cast(param),
                        {}};
    if (tensor.name.empty() && !param.name.empty()) {
      throw UsageError("'" + param.name + "' is left without a name");
    }
    if (!names.insert(tensor.name).second) {
      throw UsageError(
          "'" + param.name + "' gets the name '" + tensor.name + "' of another tensor by " +
          (options.key_map.empty() ? "--strip-prefix" : "--strip-prefix or --key-map"));
    }
    const std::string& owner = param.alias_of.empty() ? param.name : param.alias_of;
    const auto [first, is_first] =
        written.emplace(owner, std::pair(tensor.source.dtype(), tensor.name));
    if (!is_first && first->second.first == tensor.source.dtype()) {
      tensor.alias_of = first->second.second;
    }
    tensors.push_back({&param, std::move(tensor)});
  }
  if (tensors.empty() && !choose_incomplete(checkpoint, options).empty()) {
    throw InconsistentError({.file = checkpoint.tag_folder().string()},
                            "no parameter is complete without the files that are lost");
  }
  if (tensors.empty()) throw UsageError("no tensor is left to write");
  for (const std::string& rule : key_map.unused()) notes.push_back(rule + ": renames nothing");
  return tensors;
}

std::vector<IncompleteParam> choose_incomplete(const Checkpoint& checkpoint,
                                               const WeightsOptions& options) {
  const Selection selection(options);
  std::vector<IncompleteParam> chosen;
  for (const IncompleteParam& param : checkpoint.incomplete()) {
    if (selection.wants(param.name, param.kind)) chosen.push_back(param);
  }
  return chosen;
}

std::string without_prefix(const std::string& name, const std::vector<std::string>& prefixes) {
  for (const std::string& prefix : prefixes) {
    if (!prefix.empty() && name.starts_with(prefix) && name.size() > prefix.size()) {
      return name.substr(prefix.size());
    }
  }
  return name;
}

WeightsPlan plan_weights(InputFiles& inputs, const Checkpoint& checkpoint,
                         const WeightsOptions& options) {
  WeightsPlan result;
  result.notes = checkpoint.notes();
  result.incomplete = choose_incomplete(checkpoint, options);
  const std::vector<ChosenTensor> chosen = choose_tensors(checkpoint, options, result.notes);
  std::vector<OutputTensor> tensors;
  for (const ChosenTensor& each : chosen) tensors.push_back(each.tensor);
  result.split = split_weights(*options.format, std::move(tensors), options.max_shard_size);
  PlanBuilder plan;
  if (!options.hf_config.empty()) add_companions(inputs, options.hf_config, plan);
  lay_out_weights(plan, *options.format, result.split);
  if (options.states) {
    result.states = lay_out_states(plan, checkpoint, chosen, options.max_shard_size, result.notes);
  }
  result.plan = plan.finish();
  result.plan.validate(planned_inputs(inputs));
  return result;
}

std::vector<std::string> other_weights(const CopyPlan& plan, const fs::path& output) {
  std::vector<std::string> names;
  for (const fs::path& folder : {fs::path(), fs::path(kStatesFolder)}) {
    std::error_code failed;
    fs::directory_iterator it(output / folder, failed);
    for (const fs::directory_iterator end; !failed && it != end; it.increment(failed)) {
      const std::string name = content_path(it->path()).filename().string();
      const std::string path = (folder / name).string();
      const bool ours = std::any_of(plan.outputs().begin(), plan.outputs().end(),
                                    [&](const PlannedFile& file) { return file.path == path; });
      if (!ours && (!folder.empty() || is_weights_file(name))) names.push_back(path);
    }
  }
  std::sort(names.begin(), names.end());
  return names;
}

}  // namespace dsckpt
