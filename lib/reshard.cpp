#include "reshard.h"

#include <algorithm>
#include <set>
#include <system_error>
#include <utility>

#include "base/error.h"
#include "checkpoint/shard_name.h"
#include "neighbours.h"

namespace dsckpt {
namespace fs = std::filesystem;
namespace {

constexpr std::string_view kLatest = "latest";

void put_text(PlanBuilder& plan, std::string path, std::string_view text) {
  const OutputId out = plan.add_output(std::move(path), text.size());
  plan.put_literal(out, 0, text);
}

// A universal folder is called after the tag it was made of.
std::string tag_of(const Checkpoint& source) {
  constexpr std::string_view kSuffix = "_universal";
  std::string tag = source.facts().tag;
  if (source.facts().layout == "universal" && tag.ends_with(kSuffix)) {
    tag.resize(tag.size() - kSuffix.size());
  }
  return tag;
}

// The batch settings are those of the run that saved the checkpoint, in the new run's
// configuration.
std::optional<BatchPlan> batch_plan(const Checkpoint& source, const ReshardTarget& target,
                                    PlanBuilder& plan, std::string& path) {
  const auto saved = saved_ds_config(source);
  const EngineConfig engine = saved ? engine_config(*saved) : EngineConfig{};
  BatchPlan batch = plan_batch(engine, source.facts().mesh.dp, target.dp);
  if (const auto choice = batch.choice()) {
    path = "ds_config_dp" + std::to_string(target.dp) + ".json";
    put_text(plan, path,
             ds_config_text(with_batch(target.ds_config.value_or(saved.value()), *choice)));
  }
  return batch;
}

}  // namespace

ReshardPlan plan_reshard(InputFiles& inputs, const Checkpoint& source, const fs::path& input,
                         const ReshardOptions& options, bool plan_batch) {
  ReshardPlan result;
  result.notes = source.notes();
  result.target = reshard_target(source, options, result.notes);
  result.tag = tag_of(source);
  PlanBuilder plan;
  result.groups = lay_out_shards(plan, source, result.target, result.tag, result.notes);
  std::string config_path;
  if (plan_batch) result.batch = batch_plan(source, result.target, plan, config_path);
  Neighbours beside =
      find_neighbours({.named = input, .tag_folder = source.tag_folder(), .tag = result.tag},
                      source.facts().mesh.dp, result.target.dp);
  std::erase_if(beside.files,
                [&](const Neighbour& file) { return file.destination == config_path; });
  lay_out_neighbours(inputs, beside.files, plan);
  result.notes.insert(result.notes.end(), beside.notes.begin(), beside.notes.end());
  put_text(plan, std::string(kLatest), result.tag);
  result.plan = plan.finish();
  result.plan.validate(planned_inputs(inputs));
  return result;
}

void check_reshard_place(const Checkpoint& source, const ReshardPlan& plan, const fs::path& output,
                         bool force) {
  if (output.empty()) throw UsageError("the output folder has no name");
  check_output_place(source, output);
  std::set<std::string> ours;
  for (const PlannedFile& file : plan.plan.outputs()) {
    ours.insert(fs::path(file.path).begin()->string());
  }
  const auto belongs = [&](const fs::path& entry) {
    const std::string name = entry.filename().string();
    return ours.contains(name) || name.starts_with("ds_config_dp") ||
           name.starts_with("rng_state") || name.starts_with("random_states_");
  };
  std::error_code failed;
  fs::directory_iterator it(output, failed);
  for (const fs::directory_iterator end; !failed && it != end; it.increment(failed)) {
    if (!force) {
      throw std::move(UsageError(output.string() + ": exists already"))
          .with_hint("--force replaces what reshard wrote there before");
    }
    if (!belongs(it->path())) {
      throw UsageError(output.string() + ": is not replaced, since it holds " +
                       it->path().filename().string() + ", which would be lost");
    }
  }
}

ExecStats run_reshard(const ReshardPlan& plan, const InputFiles& inputs, const Checkpoint& source,
                      const fs::path& output, Progress& progress, const RunOptions& options) {
  RunOptions whole = options;
  whole.stage.whole_folder = true;
  return run_plan(plan.plan, inputs, source.records(options.verify),
                  fs::weakly_canonical(fs::absolute(output)), progress, whole);
}

}  // namespace dsckpt
