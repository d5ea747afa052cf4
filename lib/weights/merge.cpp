// Merges an adapter into its base, with the same weights as peft's merge_and_unload().
#include <algorithm>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "base/text.h"
#include "dsckpt/error.h"
#include "dsckpt/weights.h"
#include "job/job_impl.h"
#include "weights/adapter_config.h"
#include "weights/companions.h"
#include "weights/lora_layers.h"
#include "weights/merge_base.h"
#include "weights/merged_model.h"
#include "weights/model_config.h"
#include "weights/output_names.h"
#include "weights/selection.h"
#include "weights/trained_parts.h"
#include "weights/trained_rows.h"
#include "weights/weights_format.h"
#include "weights/weights_report.h"

namespace dsckpt {
namespace fs = std::filesystem;
namespace {

LoraSettings settings_for(const Checkpoint& checkpoint, const TrainedParts& parts,
                          const AdapterOptions& options, bool own_base,
                          std::vector<std::string>& notes) {
  if (const auto path = adapter_config(checkpoint, parts.adapter, options, "--merge")) {
    return {read_adapter_config(*path), path->string(), own_base};
  }
  notes.emplace_back(
      "without a configuration, use_rslora, fan_in_fan_out and alpha_pattern get peft's defaults");
  return LoraSettings(*options.lora_alpha);
}

// Returns the options with the base's configuration, if they name no other.
WeightsOptions with_config_of_base(WeightsOptions weights, const MergeOptions& options) {
  std::error_code failed;
  const bool is_file = fs::is_regular_file(options.base, failed);
  const fs::path folder = is_file ? options.base.parent_path() : options.base;
  if (weights.hf_config.empty() && !options.base.empty() &&
      fs::exists(folder / "config.json", failed)) {
    weights.hf_config = folder;
  }
  return weights;
}

// Returns the transformers class of the base; "" if no configuration tells it.
std::string architecture_of_base(const Checkpoint& checkpoint, const WeightsOptions& weights) {
  const std::optional<std::string> config = config_text(checkpoint, weights);
  const std::string architecture = config ? architecture_in_config(*config) : std::string();
  return architecture == kAnyArchitecture ? std::string() : architecture;
}

// An adapter without tensors that its configuration lists is not the trained one. Where the user
// chooses tensors, some may be left out.
void refuse_missing_parts(const BaseTensors& base, const TrainedParts& parts,
                          const LoraSettings& settings, const WeightsOptions& options) {
  if (!options.include.empty() || !options.exclude.empty()) return;
  for (const std::string& module : settings.modules_to_save()) {
    const auto is_of_it = [&](const auto& each) { return is_in_module(each.first, module); };
    if (std::any_of(parts.whole.begin(), parts.whole.end(), is_of_it)) continue;
    const auto of_base =
        std::find_if(base.tensors.begin(), base.tensors.end(),
                     [&](const auto& tensor) { return is_in_module(tensor.name, module); });
    if (of_base == base.tensors.end()) continue;
    throw InconsistentError(
        {.file = settings.file(), .member = "modules_to_save"},
        "has \"" + printable(module) + "\", and there is no trained '" + of_base->name + "'");
  }
  if (settings.has_token_indices() && parts.rows.empty()) {
    throw InconsistentError({.file = settings.file(), .member = "trainable_token_indices"},
                            "has rows, and none were trained");
  }
}

}  // namespace

Job plan_merge(const Source& source, const WeightsOptions& weights, const MergeOptions& options) {
  const Checkpoint& checkpoint = *source->checkpoint;
  const bool own_base = options.base.empty();
  if (weights.states || weights.torch_optimizer || weights.exclude_frozen_parameters) {
    throw UsageError(
        "--merge writes whole weights, without --states, --torch-optimizer and "
        "--exclude-frozen-parameters");
  }
  if (!checkpoint.averaged().empty()) {
    throw UsageError("--merge and --average are both given")
        .with_hint("merge each of them, and average the results");
  }
  Job::Impl job = job_of(source);
  for (const IncompleteParam& param : choose_incomplete(checkpoint, weights)) {
    if (param.kind != ParamKind::trainable && !own_base) continue;
    throw InconsistentError(
        {.file = checkpoint.lost_files()[param.lost.front()].display, .tensor = param.name},
        "is part of the merge");
  }
  WeightsOptions as_stored = weights;
  as_stored.dtype = std::nullopt;
  as_stored.keep_fp32 = {};
  const std::vector<ChosenTensor> chosen = choose_tensors(checkpoint, as_stored, job.notes);
  const TrainedParts parts = find_trained_parts(checkpoint, chosen, options.adapter, own_base);
  const LoraSettings settings =
      settings_for(checkpoint, parts, options.adapter, own_base, job.notes);
  const BaseTensors base =
      own_base
          ? base_of_checkpoint(checkpoint, chosen)
          : base_of_weights(*source->inputs, options.base,
                            {parts, settings, weights.names == TensorNames::module}, job.notes);
  refuse_missing_parts(base, parts, settings, weights);
  const MergedTypes types(weights);
  const WeightsOptions with_config = with_config_of_base(weights, options);
  MergedModel model(base, architecture_of_base(checkpoint, with_config), parts, settings, types,
                    job.notes);
  merge_layers(base, parts, settings, model);
  merge_rows(base, parts, settings, types, model);
  // A base with the hub's names gets them back.
  const bool back = base.from_hub && weights.names == TensorNames::by_config;
  const TensorNames names = back ? TensorNames::hub : weights.names;
  WeightsOptions for_output = names == TensorNames::hub ? with_config : weights;
  for_output.strip_prefix = {};  // of the adapter's names
  std::vector<OutputTensor> tensors =
      with_output_names(names, checkpoint, for_output, model.outputs(), job.notes);
  const std::optional<DType> written = type_of_most(tensors);
  WeightsSplit split = split_weights(*weights.format, std::move(tensors), weights.max_shard_size);
  PlanBuilder plan;
  std::vector<std::string> missing = lay_out_companions(*source->inputs, checkpoint, weights,
                                                        written, plan, job.notes, model.changes());
  lay_out_weights(plan, *weights.format, split);
  set_plan(job, plan);
  refuse_other_weights(job);
  if (!own_base) job.place.inputs.push_back({options.base, "where the base's weights are"});
  job.what = summary_of(split) + ", merged";
  auto report = std::make_shared<WeightsReport>(std::move(split), std::vector<StateFiles>());
  report->set_kind(*weights.format, base.valueless.empty(), false);
  report->add_missing(std::move(missing));
  for (const std::string& name : base.valueless) {
    job.left_out.push_back("no values\t" + printable(name));
  }
  report->add_facts(true, base.valueless);
  if (source->options.allow_missing) report->add_salvage(checkpoint, {});
  job.report = std::move(report);
  return Job(std::move(job));
}

}  // namespace dsckpt
