#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <utility>

#include "base/text.h"
#include "checkpoint/find/tag_folder.h"
#include "checkpoint/other_values.h"
#include "checkpoint/regrid.h"
#include "checkpoint/renamed.h"
#include "checkpoint/weights.h"
#include "deepspeed/ds_config.h"
#include "deepspeed/engine_config.h"
#include "deepspeed/keys.h"
#include "deepspeed/shard_name.h"
#include "dsckpt/error.h"
#include "dsckpt/reshard.h"
#include "job/job_impl.h"
#include "job/neighbours.h"
#include "job/next_step.h"
#include "reshard/batch_plan.h"
#include "reshard/copies.h"
#include "reshard/files.h"
#include "reshard/refusals.h"
#include "reshard/target.h"

namespace dsckpt {
namespace fs = std::filesystem;
namespace {

constexpr std::string_view kLatest = "latest";

// A universal folder is called after the tag it was made of.
std::string tag_of(const Checkpoint& source) {
  constexpr std::string_view kSuffix = "_universal";
  std::string tag = output_tag(source);
  if (source.facts().is_universal() && tag.size() > kSuffix.size() && tag.ends_with(kSuffix)) {
    tag.resize(tag.size() - kSuffix.size());
  }
  return tag;
}

// How the dry run shows a parameter group: of which world, and the number of it there.
void add_groups(const std::vector<ReshardedGroup>& groups, std::vector<std::string>& lines) {
  uint32_t mp_rank = 0;
  size_t first = 0;
  for (size_t g = 0; g < groups.size(); ++g) {
    const ReshardedGroup& group = groups[g];
    if (group.mp_rank != mp_rank) first = g;
    mp_rank = group.mp_rank;
    std::string line;
    if (groups.back().mp_rank > 0) line += "mp rank " + std::to_string(mp_rank) + ", ";
    line += "group " + std::to_string(g - first) + ": " + counted(group.params, "parameter") +
            ", " + counted(group.numel, "element");
    if (group.ep > 1) line += " on each of " + counted(group.ep, "expert-parallel rank");
    if (group.partition > 0) line += ", " + std::to_string(group.partition) + " a rank";
    if (group.sub_groups > 0) line += " in " + counted(group.sub_groups, "sub-group");
    lines.push_back(std::move(line));
  }
}

// {"dp", "tp", "pp", "ep", "zero_stage", "optimizer_wrapper", "tag", "stages"?, "weights_from"?,
// "groups":
// [{"mp_rank", "ep", "params", "numel", "partition", "sub_groups"}], "batch"?, "files": [{"path",
// "bytes"}], "bytes_read", "bytes_written"}
class ReshardReport : public JobReport {
 public:
  ReshardTarget target;
  std::vector<ReshardedGroup> groups;
  Mesh mesh;  // of the new run
  // The first layer of each pipeline stage, and lines that say it; only if they were chosen.
  std::vector<uint32_t> starts;
  std::vector<std::string> stages;
  std::string tag;
  std::string weights_from;        // SourceOptions::weights_from
  std::optional<BatchPlan> batch;  // only if it was asked for
  Program program = Program::deepspeed;

  nlohmann::json json(const Job::Impl& job) const override {
    nlohmann::json described = nlohmann::json::array();
    for (const ReshardedGroup& group : groups) {
      described.push_back({{"mp_rank", group.mp_rank},
                           {"ep", group.ep},
                           {"params", group.params},
                           {"numel", group.numel},
                           {"partition", group.partition},
                           {"sub_groups", group.sub_groups}});
    }
    nlohmann::json out = plan_json(job.plan);
    out["dp"] = target.dp;
    out["tp"] = mesh.tp;
    out["pp"] = mesh.pp;
    out["ep"] = target.ep;
    out["zero_stage"] = target.stage;
    out["optimizer_wrapper"] = std::string(to_string(target.wrapper));
    out["tag"] = tag;
    if (!starts.empty()) out["stages"] = starts;
    if (!weights_from.empty()) out["weights_from"] = weights_from;
    out["groups"] = std::move(described);
    if (batch) out["batch"] = json_of(*batch);
    return out;
  }

  Listing listing(const Job::Impl& job) const override {
    Listing listing;
    for (const PlannedFile& file : job.plan.outputs()) {
      listing.rows.push_back({printable(file.path), human_bytes(file.size)});
    }
    listing.below.insert(listing.below.end(), stages.begin(), stages.end());
    add_groups(groups, listing.below);
    listing.below.push_back(plan_totals(job.plan));
    return listing;
  }

  std::string preface() const override { return batch ? text_of(*batch) : ""; }

  std::string next(const Job::Impl&, const fs::path& output) const override {
    return going_on(program, output);
  }
};

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

// Frozen parameters have been rounded to their type once; those of another framework are as it had
// them.
void refuse_another_precision(const Checkpoint& source, const ReshardTarget& target) {
  if (!source.facts().has_given_weights() || source.facts().is_foreign() || !target.param_dtype)
    return;
  for (const Param& param : source.params()) {
    if (param.kind != ParamKind::frozen || size_of(param.weight.dtype()) >= 4) continue;
    throw UsageError("--weights-from with another precision: the frozen '" + param.name +
                     "' would be rounded twice")
        .with_hint("reshard to the other precision first, then give it the weights");
  }
}

void lay_out_world(const Checkpoint& world, const TargetOptions& options, PlanBuilder& plan,
                   ReshardReport& report, std::vector<std::string>& notes) {
  report.target = reshard_target(world, options, notes);
  refuse_another_precision(world, report.target);
  const auto groups = lay_out_shards(plan, world, report.target, report.tag, notes);
  report.groups.insert(report.groups.end(), groups.begin(), groups.end());
  report.target.groups.clear();  // they belong to `world`
}

// The grid of a checkpoint that the new run has saved has to be that of the result.
void check_grid(const Checkpoint& like, const Mesh& mesh) {
  const Mesh& of_like = like.facts().mesh;
  if (of_like.pp == mesh.pp && of_like.tp == mesh.tp) return;
  const auto text = [](const Mesh& each) {
    return counted(each.pp, "pipeline stage") + " and " + counted(each.tp, "tensor-parallel rank");
  };
  throw UsageError("--like: " + like.tag_folder().string() + " is of " + text(of_like) +
                   ", and the result would be of " + text(mesh))
      .with_hint("--pp " + std::to_string(of_like.pp) + " --tp " + std::to_string(of_like.tp) +
                 " says that grid");
}

// Lays out the world of an mp rank, like that of `options.like`, if there is one.
void lay_out_rank(const Checkpoint& world, uint32_t mp_rank, const TargetOptions& options,
                  PlanBuilder& plan, ReshardReport& report, Job::Impl& job) {
  TargetOptions of_world = options;
  std::optional<Checkpoint> like;
  if (options.like != nullptr && options.like->facts().model_parallel) {
    of_world.like = &like.emplace(options.like->world(mp_rank));
  }
  std::vector<std::string> repeated;
  lay_out_world(world, of_world, plan, report, mp_rank == 0 ? job.notes : repeated);
}

void lay_out_worlds(const Source& source, const TargetOptions& options, PlanBuilder& plan,
                    ReshardReport& report, Job::Impl& job) {
  const Checkpoint& checkpoint = *source->checkpoint;
  refuse_folded(checkpoint);
  RankFreeFiles copied(*source->inputs, checkpoint);
  const Mesh& mesh = checkpoint.facts().mesh;
  for (uint32_t mp_rank = 0; mp_rank < mesh.pp * mesh.tp; ++mp_rank) {
    const Checkpoint world = checkpoint.world(mp_rank);
    copied.check(world, mp_rank);
    lay_out_rank(world, mp_rank, options, plan, report, job);
    copied.take_values(world, report.target);
  }
  copied.lay_out(plan, report.tag);
}

// True if its parameters have to be cut: a universal checkpoint has them whole.
bool has_new_grid(const Checkpoint& checkpoint, const ReshardOptions& options) {
  const bool is_joined = checkpoint.facts().model_parallel && checkpoint.facts().is_universal();
  return is_joined || options.tp || options.pp || !options.stages.empty() ||
         options.padded_vocab_size || options.kv_heads;
}

// Its files do not say that it has pipeline stages: no rank had another part of the model.
void refuse_one_stage(const Checkpoint& checkpoint) {
  const CheckpointFacts& facts = checkpoint.facts();
  if (facts.run != RunKind::universal || facts.model_parallel || checkpoint.files().model.empty()) {
    return;
  }
  if (!root_of(checkpoint).find_or_none(keys::kModule).is_none()) return;
  throw UnsupportedError({.file = checkpoint.tag_folder().string()},
                         "is a universal checkpoint of a pipeline with one stage, and has no files "
                         "of its layers")
      .with_hint("reshard takes the checkpoint that the run itself has saved");
}

Mesh mesh_of_result(const Checkpoint& checkpoint, const ReshardOptions& options) {
  Mesh mesh = checkpoint.facts().mesh;
  mesh.pp = options.pp.value_or(mesh.pp);
  mesh.tp = options.tp.value_or(mesh.tp);
  return mesh;
}

void lay_out_on_grid(const Source& source, const ReshardOptions& options,
                     const TargetOptions& target, PlanBuilder& plan, ReshardReport& report,
                     Job::Impl& job) {
  const Checkpoint& checkpoint = *source->checkpoint;
  refuse_folded(checkpoint);
  // The sub-groups in the files are those of the present slices.
  if (checkpoint.facts().zero_stage == 3 && target.like == nullptr &&
      !checkpoint.facts().is_universal()) {
    const Checkpoint& run = checkpoint.run();
    std::vector<std::string> unused;
    if (run.facts().model_parallel) {
      reshard_target(run.world(0), target, unused);
    } else {
      reshard_target(run, target, unused);
    }
  }
  const Regrid grid(checkpoint, {.pp = options.pp,
                                 .tp = options.tp,
                                 .stages = options.stages,
                                 .padded_vocab_size = options.padded_vocab_size,
                                 .kv_heads = options.kv_heads,
                                 .like = target.like});
  job.notes.insert(job.notes.end(), grid.notes().begin(), grid.notes().end());
  report.mesh = grid.mesh();
  report.starts = grid.starts();
  report.stages = grid.lines();
  RankFreeFiles copied(*source->inputs, checkpoint);
  for (uint32_t mp_rank = 0; mp_rank < grid.worlds(); ++mp_rank) {
    const Checkpoint world = grid.world(mp_rank);
    if (grid.keeps_slices()) copied.check(world, mp_rank);
    lay_out_rank(world, mp_rank, target, plan, report, job);
    if (grid.keeps_slices()) copied.take_values(world, report.target);
  }
  if (grid.keeps_slices()) {
    copied.lay_out(plan, report.tag);
  } else {
    lay_out_grid_layers(plan, grid, report.target, report.tag);
    lay_out_grid_experts(plan, grid, copied, report.target, report.tag);
  }
}

// True if a reshard of the same checkpoint, to any number of ranks, may have written a file of this
// path in the output folder.
bool may_be_ours(const std::string& tag, const std::set<std::string>& planned,
                 const fs::path& path) {
  if (planned.contains(path.string())) return true;
  const std::string name = path.filename().string();
  if (path.parent_path() == fs::path(tag)) return parse_shard_name(name).has_value();
  return path.parent_path().empty() &&
         (name.starts_with("ds_config_dp") || name.starts_with("rng_state") ||
          name.starts_with("random_states_"));
}

Place place_of(const Source& source, const CopyPlan& plan, const std::string& tag) {
  std::set<std::string> planned;
  for (const PlannedFile& file : plan.outputs()) planned.insert(file.path);
  Place place = place_beside(source);
  // Also what lies beside the shards is copied.
  std::error_code failed;
  if (fs::is_directory(source->path, failed)) {
    place.inputs.insert(place.inputs.begin(), {source->path, "the input folder"});
  }
  place.whole = true;
  place.is_ours = [tag, planned = std::move(planned)](const fs::path& path) {
    return may_be_ours(tag, planned, path);
  };
  place.replaced = "reshard's earlier output";
  return place;
}

void check(const ReshardOptions& options) {
  const auto check_ranks = [](uint32_t ranks, const char* kind) {
    if (ranks >= 1 && ranks <= kMaxRanks) return;
    throw UsageError(std::to_string(ranks) + " " + kind + "-parallel ranks: there can be 1 to " +
                     std::to_string(kMaxRanks));
  };
  check_ranks(options.dp, "data");
  if (options.ep) check_ranks(*options.ep, "expert");
  check_ranks(options.tp.value_or(1), "tensor");
  check_ranks(options.pp.value_or(1), "pipeline");
  if (options.stage && (*options.stage < 0 || *options.stage > 3)) {
    throw UsageError("there is no stage " + std::to_string(*options.stage));
  }
  if (options.sub_group_size == 0u) throw UsageError("sub-groups of 0 elements");
}

TargetOptions target_options(const Source& source, const ReshardOptions& options) {
  check(options);
  TargetOptions target{.dp = options.dp,
                       .ep = options.ep,
                       .stage = options.stage,
                       .sub_group_size = options.sub_group_size,
                       .ds_version = options.ds_version,
                       .ds_config = {}};
  if (!options.ds_config.empty()) target.ds_config = load_ds_config(options.ds_config);
  // Weights have become one with what they are like, and so have values of other frameworks.
  const CheckpointFacts& facts = source->checkpoint->facts();
  if (!facts.from_weights() && !facts.has_given_states()) target.like = source->like.get();
  return target;
}

// Frameworks' files of the model beside the shards have its earlier values.
void leave_out_weights(std::vector<Neighbour>& files, std::vector<std::string>& notes) {
  std::vector<std::string> names;
  std::erase_if(files, [&](const Neighbour& file) {
    if (!is_weights_name(file.destination)) return false;
    names.push_back(file.destination);
    return true;
  });
  if (names.empty()) return;
  notes.push_back("weights beside the shards are left out, they are not those of the new run:" +
                  listed(names));
}

// The files beside the shards. A file in the place of the suggested configuration is left out.
void lay_out_beside(const Source& source, const ReshardReport& report,
                    const std::string& config_path, PlanBuilder& plan, Job::Impl& job) {
  const Checkpoint& checkpoint = *source->checkpoint;
  Neighbours beside;
  // Files beside weights belong to no training. The states decide whose goes on.
  const CheckpointFacts& facts = checkpoint.facts();
  std::error_code failed;
  if (!facts.from_weights() && fs::is_directory(source->path, failed)) {
    beside = find_neighbours(place_in(source, report.tag), facts.mesh.dp, report.target.dp);
  }
  const size_t left_out = std::erase_if(beside.files, [&](const Neighbour& file) {
    return !config_path.empty() && fs::path(file.destination).begin()->string() == config_path;
  });
  if (left_out > 0) job.notes.push_back(config_path + " beside the shards is left out");
  if (checkpoint.facts().has_given_weights() || checkpoint.facts().changed) {
    leave_out_weights(beside.files, job.notes);
  }
  lay_out_neighbours(*source->inputs, beside.files, plan);
  job.notes.insert(job.notes.end(), beside.notes.begin(), beside.notes.end());
}

// Other modules may list their parameters in another order, by which the optimizer numbers them.
void note_order(const Source& source, const TargetOptions& target,
                std::vector<std::string>& notes) {
  const auto is_made = [](const Param& param) { return is_trained(param) && param.given; };
  const std::vector<Param>& params = source->checkpoint->params();
  if (source->options.key_map.empty() || target.like != nullptr ||
      source->checkpoint->facts().from_weights() ||
      std::none_of(params.begin(), params.end(), is_made)) {
    return;
  }
  notes.emplace_back(
      "tensors that --key-map cuts or joins stand where the optimizer had the first source: the "
      "new run "
      "has to give its optimizer the parameters in this order, which nothing here can check; "
      "--like CHECKPOINT takes the order from a checkpoint of it");
}

// " and 2 x 2 mp ranks as 1 x 4", if they change.
std::string grid_change(const Mesh& from, const Mesh& to) {
  const auto text = [](const Mesh& mesh) {
    return std::to_string(mesh.pp) + " x " + std::to_string(mesh.tp);
  };
  if (text(from) == text(to)) return {};
  return ", " + text(from) + " pipeline stages and tensor-parallel ranks as " + text(to);
}

std::string summary_of(const Source& opened, const ReshardTarget& target, const Mesh& mesh) {
  const Checkpoint& source = *opened->checkpoint;
  std::string given;
  if (source.facts().is_foreign()) {
    return "what " + counted(source.facts().mesh.dp, "rank") +
           " of another framework had as "
           "stage " +
           std::to_string(target.stage) + " of " + std::to_string(target.dp);
  }
  if (source.facts().has_given_states()) {
    given = "the values of " + opened->path.string() + " in ";
  } else if (source.facts().has_given_weights()) {
    given = "the weights of " + opened->options.weights_from.string() + " in ";
  }
  return given + "stage " + std::to_string(source.facts().zero_stage) + " of " +
         counted(source.facts().mesh.dp, "rank") + " as stage " + std::to_string(target.stage) +
         " of " + std::to_string(target.dp) + grid_change(source.facts().mesh, mesh);
}

// For another framework's checkpoint, with the configuration alone.
Source made_run(const Source& source) {
  Source made = source_of(source->path, source->inputs,
                          std::make_shared<const Checkpoint>(for_deepspeed(source->checkpoint)));
  made->options = source->options;
  return made;
}

}  // namespace

Job plan_reshard(const Source& source, const ReshardOptions& options) {
  const CheckpointFacts& known = source->checkpoint->facts();
  if (known.lacks_engine() && !options.ds_config.empty()) {
    return plan_reshard(made_run(source), options);
  }
  const Checkpoint& checkpoint = *source->checkpoint;
  const TargetOptions target = target_options(source, options);
  for (const Checkpoint* each : {&checkpoint, target.like}) {
    if (each == nullptr) continue;
    const CheckpointFacts& facts = each->facts();
    if (facts.lacks_engine()) {
      throw UnsupportedError({.file = each->tag_folder().string()},
                             "is of torch.distributed.checkpoint: it does not tell the engine of "
                             "DeepSpeed")
          .with_hint("--ds-config FILE describes it, and so does --like CHECKPOINT of the new run");
    }
    if (facts.states == StatesTold::stripped || (!facts.has_masters && !facts.from_weights()))
      throw unassigned_states(*each);
  }
  refuse_renamed_slices(checkpoint);
  refuse_one_stage(checkpoint);
  Job::Impl job = job_of(source);
  note_order(source, target, job.notes);
  auto report = std::make_shared<ReshardReport>();
  report->tag = tag_of(checkpoint);
  report->mesh = checkpoint.facts().mesh;
  report->weights_from = source->options.weights_from.string();
  report->program =
      program_of(checkpoint.facts().from_weights() && source->like ? *source->like : checkpoint);
  if (target.like != nullptr) check_grid(*target.like, mesh_of_result(checkpoint, options));
  PlanBuilder plan;
  if (has_new_grid(checkpoint, options)) {
    lay_out_on_grid(source, options, target, plan, *report, job);
  } else if (checkpoint.facts().model_parallel) {
    lay_out_worlds(source, target, plan, *report, job);
  } else {
    lay_out_world(checkpoint, target, plan, *report, job.notes);
  }
  std::string config_path;
  if (options.plan_batch) report->batch = batch_plan(checkpoint, report->target, plan, config_path);
  lay_out_beside(source, *report, config_path, plan, job);
  put_text(plan, std::string(kLatest), report->tag);
  set_plan(job, plan);
  job.place = place_of(source, job.plan, report->tag);
  job.what = summary_of(source, report->target, report->mesh);
  job.report = std::move(report);
  return Job(std::move(job));
}

}  // namespace dsckpt
