#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "base/text.h"
#include "checkpoint/renamed.h"
#include "checkpoint/trained_types.h"
#include "dsckpt/error.h"
#include "dsckpt/weights.h"
#include "job/job_impl.h"
#include "job/source.h"
#include "weights/companions.h"
#include "weights/selection.h"
#include "weights/state_files.h"
#include "weights/torch_optimizer_file.h"
#include "weights/weights_format.h"
#include "weights/weights_report.h"

namespace dsckpt {
namespace {

// Returns a line for each parameter that is left out because of lost files.
std::vector<std::string> left_out(const Checkpoint& checkpoint,
                                  const std::vector<IncompleteParam>& incomplete) {
  std::vector<std::string> lines;
  for (const IncompleteParam& param : incomplete) {
    std::string line = "incomplete\t" + printable(param.name) + "\t";
    for (size_t i = 0; i < param.lost.size(); ++i) {
      line += (i == 0 ? "" : ",") + printable(checkpoint.lost_files()[param.lost[i]].display);
    }
    lines.push_back(std::move(line));
  }
  return lines;
}

// The optimizer gets the same names as the weights.
void lay_out_optimizer(PlanBuilder& plan, const Source& source, const WeightsOptions& options,
                       std::vector<std::string>& notes) {
  if (options.key_map.empty()) return lay_out_torch_optimizer(plan, *source->checkpoint, notes);
  if (!options.strip_prefix.empty()) {
    throw UsageError("--torch-optimizer with both --strip-prefix and --key-map")
        .with_hint("a rule of the file takes a prefix off, too: '^PREFIX =>'");
  }
  KeyMap rules = read_key_map(options.key_map);
  lay_out_torch_optimizer(plan, renamed(source->checkpoint, rules), notes);
}

// torch makes infinities of larger numbers without a word, and so does this.
void note_overflow(const Checkpoint& checkpoint, std::optional<DType> written,
                   std::vector<std::string>& notes) {
  if (written != DType::float16) return;
  const std::set<DType> trained = trained_types(checkpoint);
  if (trained.empty() || trained == std::set{DType::float16}) return;
  notes.push_back("numbers above 65504 become infinite in float16, and the model is of " +
                  std::string(torch_name(*trained.rbegin())) +
                  ": `ckpt-inspect stats OUT` counts infinities");
}

}  // namespace

Job plan_weights(const Source& source, const WeightsOptions& options) {
  const Checkpoint& checkpoint = *source->checkpoint;
  Job::Impl job = job_of(source);
  const std::vector<IncompleteParam> incomplete = choose_incomplete(checkpoint, options);
  std::vector<ChosenTensor> chosen = choose_named_tensors(checkpoint, options, job.notes);
  std::vector<OutputTensor> tensors;
  tensors.reserve(chosen.size());
  for (ChosenTensor& each : chosen) {
    tensors.push_back(options.states ? each.tensor : std::move(each.tensor));
  }
  const std::optional<DType> written = type_of_most(tensors);
  if (!options.states) chosen = std::vector<ChosenTensor>();  // this frees its memory
  WeightsSplit split = split_weights(*options.format, std::move(tensors), options.max_shard_size);
  note_overflow(checkpoint, written, job.notes);
  const bool has_masters = checkpoint.facts().has_masters;
  if (!has_masters) split.metadata["masters"] = "none";

  PlanBuilder plan;
  std::vector<StateFiles> states;
  std::vector<std::string> missing =
      lay_out_companions(*source->inputs, checkpoint, options, written, plan, job.notes);
  lay_out_weights(plan, *options.format, split);
  if (options.states) {
    states = lay_out_states(plan, checkpoint, chosen, options.max_shard_size, job.notes);
  }
  if (options.torch_optimizer) lay_out_optimizer(plan, source, options, job.notes);
  set_plan(job, plan);
  refuse_other_weights(job);

  job.left_out = left_out(checkpoint, incomplete);
  if (checkpoint.facts().from_weights()) {
    for (const LostFile& file : checkpoint.lost_files()) {
      job.left_out.push_back("missing\t" + printable(file.display));
    }
  }
  std::vector<std::string> valueless = choose_valueless(checkpoint, options);
  for (const std::string& name : valueless) {
    job.left_out.push_back("no values\t" + printable(name));
  }
  job.what = summary_of(split) + (has_masters ? "" : " (weights without fp32 masters)");
  auto report = std::make_shared<WeightsReport>(std::move(split), std::move(states));
  const bool all = options.include.empty() && options.exclude.empty() &&
                   !options.exclude_frozen_parameters && valueless.empty();
  report->set_kind(*options.format, all, false);
  if (!options.key_map.empty()) report->set_renamed();
  report->add_missing(std::move(missing));
  report->add_facts(has_masters, std::move(valueless));
  if (source->options.allow_missing) report->add_salvage(checkpoint, incomplete);
  job.report = std::move(report);
  return Job(std::move(job));
}

}  // namespace dsckpt
