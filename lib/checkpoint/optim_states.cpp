#include "checkpoint/optim_states.h"

#include <algorithm>
#include <array>
#include <map>
#include <string>

#include "checkpoint/keys.h"

namespace dsckpt {
using pickle::Kind;
using pickle::Value;
namespace {

// Longer lists help nobody; the count may be made up.
constexpr size_t kMaxListed = 1024;

// Checks that `found` are the shards of ranks 0 to `count` - 1, each once.
void check_ranks(const std::vector<ShardFile>& found, ShardName expected, uint32_t count,
                 const TagFolder& folder) {
  std::map<uint32_t, std::vector<std::string>> by_rank;
  for (const ShardFile& shard : found) {
    by_rank[shard.name.dp_rank].push_back(shard.path.filename().string());
  }
  for (const auto& [rank, names] : by_rank) {
    if (names.size() > 1) {
      throw InconsistentError({.file = folder.path.string()},
                              "two files of the same rank: " + names[0] + " and " + names[1]);
    }
  }
  std::string missing;
  size_t missing_count = 0;
  for (uint32_t rank = 0; rank < count; ++rank) {
    if (by_rank.contains(rank)) continue;
    expected.dp_rank = rank;
    if (++missing_count <= kMaxListed) missing += "\n  " + expected.file_name();
  }
  if (missing_count > kMaxListed) missing += "\n  ...";
  if (missing_count > 0) {
    throw InconsistentError({.file = folder.path.string()}, std::to_string(missing_count) + " of " +
                                                                std::to_string(count) +
                                                                " files are missing:" + missing);
  }
  if (by_rank.size() > count) {
    const auto extra = by_rank.upper_bound(count - 1);
    throw InconsistentError({.file = folder.path.string()},
                            extra->second[0] + " is one too many: the checkpoint is of " +
                                std::to_string(count) +
                                " ranks; perhaps an older checkpoint of the same tag was larger");
  }
}

// The counts that each group was cut into.
std::vector<int64_t> partition_counts(const Fields& fields) {
  const Value value = fields[keys::kPartitionCount];
  if (!value.is(Kind::list) && !value.is(Kind::tuple)) {
    return {fields.integer(keys::kPartitionCount)};
  }
  std::vector<int64_t> counts;
  for (const Value& count : fields.sequence(keys::kPartitionCount)) {
    counts.push_back(
        in_context(fields.where(keys::kPartitionCount), [&] { return count.as_int(); }));
  }
  return counts;
}

uint32_t degree_of(const Shard& shard) {
  const Fields fields = optimizer_state(shard);
  const std::vector<int64_t> counts = partition_counts(fields);
  const Where where = fields.where(keys::kPartitionCount);
  constexpr int64_t kMaxRanks = 1 << 20;
  for (const int64_t count : counts) {
    if (count < 1 || count > kMaxRanks) {
      throw CorruptError(where, "is " + std::to_string(count));
    }
    if (count != counts.front()) {
      throw UnsupportedError(where,
                             "parameter groups are cut over different numbers of ranks: this is an "
                             "expert-parallel checkpoint");
    }
  }
  if (counts.empty()) throw CorruptError(where, "is empty");
  return static_cast<uint32_t>(counts.front());
}

// One fact of a step, under the name it has in messages.
struct Evidence {
  std::string name;
  Value value;
  std::optional<double> number;  // of a tensor or number

  // base_optimizer_state_step is a setting's copy, which DeepSpeed leaves at 0.
  bool is_step() const { return number && name.ends_with(".step"); }
  bool is_setting() const { return name.ends_with(".param_groups"); }
};

void add_state_evidence(const Shard& shard, const Value& states, const std::string& path,
                        std::vector<Evidence>& out) {
  if (!states.is_mapping()) return;
  if (const auto state = states.find("state"); state && state->is_mapping()) {
    for (const auto& [index, entry] : state->as_dict().items) {
      if (!entry.is_mapping() || !index.is(Kind::integer)) continue;
      if (const auto step = entry.find("step")) {
        out.push_back({path + ".state[" + std::to_string(index.as_int()) + "].step", *step,
                       shard.archive.scalar(*step)});
      }
    }
  }
  if (const auto groups = states.find("param_groups")) {
    out.push_back({path + ".param_groups", *groups, std::nullopt});
  }
}

std::vector<Evidence> evidence(const Shard& shard, std::string_view state_key) {
  const Fields fields = optimizer_state(shard);
  std::vector<Evidence> out;
  if (const auto scaler = fields.get(keys::kLossScaler)) {
    out.push_back({std::string(keys::kLossScaler), *scaler, std::nullopt});
  }
  if (const auto step = fields.get(keys::kBaseOptimizerStateStep)) {
    out.push_back({std::string(keys::kBaseOptimizerStateStep), *step, shard.archive.scalar(*step)});
  }
  if (const auto states = fields.get(state_key)) {
    const std::string path(state_key);
    if (states->is(Kind::list)) {
      // Elastic files: a list with the state of one flat tensor for each group.
      const auto groups = states->as_sequence();
      for (size_t g = 0; g < groups.size(); ++g) {
        if (!groups[g].is_mapping()) continue;
        if (const auto step = groups[g].find("step")) {
          out.push_back(
              {path + "[" + std::to_string(g) + "].step", *step, shard.archive.scalar(*step)});
        }
      }
    } else {
      add_state_evidence(shard, *states, path, out);
    }
  }
  return out;
}

// The number of a ZeroStageEnum (deepspeed/runtime/zero/config.py) that is pickled as
// getattr(ZeroStageEnum, NAME): Python 3.11.0 to 3.11.3 did that with all enums, others write the
// number.
std::optional<int64_t> stage_of_named_enum(const Value& value) {
  if (!value.is(Kind::object)) return std::nullopt;
  const pickle::ObjectNode& object = value.as_object();
  const bool is_getattr =
      object.is_a("__builtin__", "getattr") || object.is_a("builtins", "getattr");
  if (!is_getattr || !object.arguments.is(Kind::tuple)) return std::nullopt;
  const auto arguments = object.arguments.as_sequence();
  if (arguments.size() != 2 || !arguments[1].is(Kind::string) ||
      !arguments[0].is_global("deepspeed.runtime.zero.config", "ZeroStageEnum")) {
    return std::nullopt;
  }
  constexpr std::array<std::string_view, 4> kNames{"disabled", "optimizer_states", "gradients",
                                                   "weights"};
  const auto found = std::find(kNames.begin(), kNames.end(), arguments[1].as_string());
  if (found == kNames.end()) return std::nullopt;
  return found - kNames.begin();
}

}  // namespace

Fields optimizer_state(const Shard& optim) {
  return Fields(optim, optim.archive.root()).in(keys::kOptimizerStateDict);
}

TensorSource flat_masters(const Shard& optim, const Value& tensor) {
  TensorSource masters = optim.archive.tensor(tensor).flatten();
  const DType dtype = masters.dtype();
  if (dtype != DType::float32 && dtype != DType::float16 && dtype != DType::bfloat16) {
    throw UnsupportedError({}, "floating masters expected, not " + std::string(torch_name(dtype)));
  }
  return masters;
}

int zero_stage_of(const Shard& optim) {
  const Fields fields = optimizer_state(optim);
  std::optional<int64_t> stage;
  if (const auto value = fields.get(keys::kZeroStage)) {
    stage = stage_of_named_enum(*value);
    if (!stage) stage = fields.integer(keys::kZeroStage);
  }
  if (stage && (*stage < 1 || *stage > 3)) {
    throw CorruptError(fields.where(keys::kZeroStage), "is " + std::to_string(*stage));
  }
  return static_cast<int>(stage.value_or(1));
}

uint32_t data_parallel_degree(const std::vector<Shard>& optim) {
  const uint32_t dp = degree_of(optim.front());
  for (const Shard& shard : optim) {
    if (degree_of(shard) != dp) {
      throw InconsistentError(shard.where(keys::kPartitionCount),
                              "is " + std::to_string(degree_of(shard)) + ", but " +
                                  std::to_string(dp) + " in " + optim.front().display);
    }
  }
  return dp;
}

void open_optim_shards(CheckpointDraft& draft) {
  const std::vector<ShardFile> files = draft.folder.of_kind(ShardName::Kind::optim_states);
  // One shard tells how many there must be; then all that are missing can be named at once, before
  // the others are read.
  const std::vector<Shard> first =
      open_shards(draft.inputs, {files.front()}, draft.folder.path.parent_path());
  check_ranks(files, files.front().name, degree_of(first.front()), draft.folder);
  draft.optim_shards = open_shards(draft.inputs, files, draft.folder.path.parent_path());
  draft.facts.mesh.dp = data_parallel_degree(draft.optim_shards);
}

void open_zero_model_shards(CheckpointDraft& draft, uint32_t dp) {
  const std::vector<ShardFile> files = draft.folder.of_kind(ShardName::Kind::zero_model_states);
  check_ranks(files, {.kind = ShardName::Kind::zero_model_states}, dp, draft.folder);
  draft.model_shards = open_shards(draft.inputs, files, draft.folder.path.parent_path());
}

void open_model_shard(CheckpointDraft& draft) {
  const std::vector<ShardFile> files = draft.folder.of_kind(ShardName::Kind::model_states);
  check_ranks(files, {.kind = ShardName::Kind::model_states}, 1, draft.folder);
  draft.model_shards = open_shards(draft.inputs, files, draft.folder.path.parent_path());
}

void check_same_step(CheckpointDraft& draft, std::string_view state_key) {
  const Shard& reference = draft.optim_shards.front();
  const std::vector<Evidence> expected = evidence(reference, state_key);
  const bool has_steps = std::any_of(expected.begin(), expected.end(),
                                     [](const Evidence& fact) { return fact.is_step(); });
  for (const Shard& shard : draft.optim_shards) {
    const std::vector<Evidence> found = evidence(shard, state_key);
    const auto differ = [&](const std::string& name, const std::string& how) {
      throw InconsistentError(shard.where(name), how + " in " + reference.display +
                                                     ": the ranks were not saved at the same step");
    };
    for (size_t i = 0; i < std::max(expected.size(), found.size()); ++i) {
      if (i >= expected.size()) differ(found[i].name, "is not");
      if (i >= found.size()) differ(expected[i].name, "is missing here but is");
      if (found[i].name != expected[i].name) differ(found[i].name, "is called otherwise");
      if (found[i].number == expected[i].number &&
          same_plain_data(found[i].value, expected[i].value)) {
        continue;
      }
      if (!has_steps || !found[i].is_setting()) differ(found[i].name, "differs from that");
      draft.notes.push_back(shard.display + ": " + found[i].name + " differs from that in " +
                            reference.display + ", at the same step");
    }
  }
}

void note_other_step(CheckpointDraft& draft, std::string_view state_key) {
  const Shard& optim = draft.optim_shards.front();
  const Shard& model = draft.model_shards.front();
  const Fields fields(model, model.archive.root());
  const auto global = fields.integer_if_any(keys::kGlobalSteps);
  if (!global) return;
  const int64_t expected = *global - fields.integer_if_any(keys::kSkippedSteps).value_or(0);
  for (const Evidence& fact : evidence(optim, state_key)) {
    if (!fact.is_step() || *fact.number == static_cast<double>(expected)) continue;
    draft.notes.push_back(model.display + " is of step " + std::to_string(expected) + ", but " +
                          optim.display + " has " + fact.name + " = " +
                          std::to_string(static_cast<int64_t>(*fact.number)) +
                          ": if the optimizer was not started afresh, they are not of one save");
    return;
  }
}

}  // namespace dsckpt
