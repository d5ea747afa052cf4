#include "reshard/plan_reshard.h"

#include <algorithm>
#include <set>
#include <utility>

#include "base/error.h"
#include "checkpoint/tag_folder.h"
#include "deepspeed/ds_config.h"
#include "deepspeed/keys.h"
#include "deepspeed/shard_name.h"
#include "job/neighbours.h"
#include "reshard/copies.h"

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
  std::string tag = output_tag(source);
  if (source.facts().layout == "universal" && tag.size() > kSuffix.size() &&
      tag.ends_with(kSuffix)) {
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

void lay_out_world(const Checkpoint& world, const ReshardOptions& options, PlanBuilder& plan,
                   ReshardPlan& result, std::vector<std::string>& notes) {
  result.target = reshard_target(world, options, notes);
  const auto groups = lay_out_shards(plan, world, result.target, result.tag, notes);
  result.groups.insert(result.groups.end(), groups.begin(), groups.end());
}

// The experts of a tensor-parallel rank are others than those of the next; as the files call them
// replicated, and each says only of itself what it has, they cannot be cut rank by rank.
void refuse_folded(const Checkpoint& source) {
  const CheckpointFile& file = source.model_files().front();
  if (file.archive->root().find_or_none(keys::kFolding).is_none()) return;
  throw std::move(
      UnsupportedError({.file = file.path.string(), .member = std::string(keys::kFolding)},
                       "says that AutoEP is folded with tensor parallelism, which is "
                       "not resharded"))
      .with_hint("to-universal reads it");
}

// One world after the other, so that the metadata of one is in memory at a time.
void lay_out_worlds(InputFiles& inputs, const Checkpoint& source, const ReshardOptions& options,
                    PlanBuilder& plan, ReshardPlan& result) {
  refuse_folded(source);
  const TagFolder folder = find_tag_folder(source.tag_folder(), "", source.other_roots());
  const RankFreeFiles copied(inputs, source);
  const Mesh& mesh = source.facts().mesh;
  for (uint32_t mp_rank = 0; mp_rank < mesh.pp * mesh.tp; ++mp_rank) {
    const Checkpoint world =
        Checkpoint::open(inputs, folder, {.tag = {}, .optimizer_states = true, .mp_rank = mp_rank});
    copied.check(world, mp_rank);
    std::vector<std::string> repeated;
    lay_out_world(world, options, plan, result, mp_rank == 0 ? result.notes : repeated);
    result.target.groups.clear();  // they belong to `world`
  }
  copied.lay_out(plan, result.tag);
  result.copied_records = copied.records(true);
}

// Whether a file, by its path in the output folder, is one that a reshard of the same checkpoint
// may have written, to whatever number of ranks.
bool may_be_ours(const ReshardPlan& plan, const std::set<std::string>& planned,
                 const fs::path& path) {
  if (planned.contains(path.string())) return true;
  const std::string name = path.filename().string();
  if (path.parent_path() == fs::path(plan.tag)) return parse_shard_name(name).has_value();
  return path.parent_path().empty() &&
         (name.starts_with("ds_config_dp") || name.starts_with("rng_state") ||
          name.starts_with("random_states_"));
}

}  // namespace

ReshardPlan plan_reshard(InputFiles& inputs, const Checkpoint& source, const fs::path& input,
                         const ReshardOptions& options, bool plan_batch) {
  for (const Checkpoint* each : {&source, options.like}) {
    if (each != nullptr && each->facts().stripped) throw unassigned_states(*each);
  }
  ReshardPlan result;
  result.notes = source.notes();
  result.tag = tag_of(source);
  PlanBuilder plan;
  if (source.facts().model_parallel && source.facts().layout != "universal") {
    lay_out_worlds(inputs, source, options, plan, result);
  } else {
    lay_out_world(source, options, plan, result, result.notes);
  }
  std::string config_path;
  if (plan_batch) result.batch = batch_plan(source, result.target, plan, config_path);
  // What lies beside weights is of no training.
  Neighbours beside;
  if (!source.facts().from_weights) {
    beside = find_neighbours({.named = input,
                              .tag_folder = source.tag_folder(),
                              .tag = result.tag,
                              .other_roots = source.other_roots()},
                             source.facts().mesh.dp, result.target.dp);
  }
  // What lies where the suggested configuration goes is left out.
  const size_t left_out = std::erase_if(beside.files, [&](const Neighbour& file) {
    return !config_path.empty() && fs::path(file.destination).begin()->string() == config_path;
  });
  if (left_out > 0) result.notes.push_back(config_path + " beside the shards is left out");
  lay_out_neighbours(inputs, beside.files, plan);
  result.notes.insert(result.notes.end(), beside.notes.begin(), beside.notes.end());
  put_text(plan, std::string(kLatest), result.tag);
  result.plan = plan.finish();
  result.plan.validate(planned_inputs(inputs));
  return result;
}

void check_reshard_place(const Checkpoint& source, const ReshardPlan& plan, const fs::path& output,
                         bool force) {
  std::set<std::string> planned;
  for (const PlannedFile& file : plan.plan.outputs()) planned.insert(file.path);
  check_folder_place(source, output, force, "reshard",
                     [&](const fs::path& path) { return may_be_ours(plan, planned, path); });
}

ExecStats run_reshard(const ReshardPlan& plan, const InputFiles& inputs, const Checkpoint& source,
                      const fs::path& output, Progress& progress, const RunOptions& options) {
  RunOptions whole = options;
  whole.stage.whole_folder = true;
  std::vector<InputRecord> records = source.records(options.verify);
  records.insert(records.end(), plan.copied_records.begin(), plan.copied_records.end());
  return run_plan(plan.plan, inputs, records, fs::weakly_canonical(fs::absolute(output)), progress,
                  whole);
}

}  // namespace dsckpt
