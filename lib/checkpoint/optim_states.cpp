#include "checkpoint/optim_states.h"

#include <tbb/parallel_for.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <iterator>
#include <map>
#include <string>
#include <utility>

#include "base/bytes.h"
#include "base/text.h"
#include "checkpoint/salvage.h"
#include "deepspeed/keys.h"
#include "deepspeed/release.h"
#include "format/meta_tensor.h"
#include "io/far_files.h"

namespace dsckpt {
namespace fs = std::filesystem;
using pickle::Kind;
using pickle::Value;
namespace {

// " from A and B", where there are several roots.
std::string from_roots(const TagFolder& folder) {
  if (folder.other_roots.empty()) return "";
  std::string text = " from " + shown_path(folder.path);
  for (size_t i = 0; i < folder.other_roots.size(); ++i) {
    text +=
        (i + 1 == folder.other_roots.size() ? " and " : ", ") + shown_path(folder.other_roots[i]);
  }
  return text;
}

// Checks that `found` are the shards of data-parallel ranks 0 to `dp` - 1 of mp ranks 0 to `mp` -
// 1, each once. Returns those that are missing if some may be.
std::vector<ShardName> check_ranks(const std::vector<ShardFile>& found, ShardName expected,
                                   uint32_t mp, uint32_t dp, const CheckpointDraft& draft) {
  const TagFolder& folder = draft.folder;
  using Rank = std::pair<uint32_t, uint32_t>;
  std::map<Rank, std::vector<std::string>> by_rank;
  for (const ShardFile& shard : found) {
    by_rank[{shard.name.mp_rank, shard.name.dp_rank}].push_back(
        folder.other_roots.empty() ? shard.path.filename().string() : shown_path(shard.path));
  }
  for (const auto& [rank, names] : by_rank) {
    if (names.size() > 1) {
      throw InconsistentError({.file = shown_path(folder.path)},
                              "two files of the same rank: " + names[0] + " and " + names[1]);
    }
  }
  // A file may speak of billions of ranks: they are counted, not walked.
  const uint64_t count = uint64_t{mp} * dp;
  const auto present =
      static_cast<uint64_t>(std::count_if(by_rank.begin(), by_rank.end(), [&](const auto& entry) {
        return entry.first.first < mp && entry.first.second < dp;
      }));
  const uint64_t missing_count = count - present;
  const uint64_t to_list = std::min<uint64_t>(missing_count, kMaxListed);
  std::vector<ShardName> missing;
  std::string listed;
  for (uint64_t at = 0; missing.size() < to_list; ++at) {
    expected.mp_rank = static_cast<uint32_t>(at / dp);
    expected.dp_rank = static_cast<uint32_t>(at % dp);
    if (by_rank.contains({expected.mp_rank, expected.dp_rank})) continue;
    listed += "\n  " + expected.file_name();
    missing.push_back(expected);
  }
  if (missing_count > kMaxListed) listed += "\n  ...";
  if (missing_count > kMaxListed || (missing_count > 0 && !draft.options.allow_missing)) {
    throw InconsistentError({.file = shown_path(folder.path)},
                            std::to_string(missing_count) + " of " + counted(count, "file") +
                                " are missing" + from_roots(folder) + ":" + listed)
        .with_hint(cure_of(folder, expected, true));
  }
  for (const auto& [rank, names] : by_rank) {
    if (rank.first < mp && rank.second < dp) continue;
    throw InconsistentError({.file = shown_path(folder.path)},
                            names.front() + " is one too many: the checkpoint is of " +
                                counted(count, "rank") +
                                "; perhaps an older checkpoint of the same tag was larger");
  }
  return missing;
}

// One of `files` that tells of all.
Shard open_one(const CheckpointDraft& draft, const std::vector<ShardFile>& files) {
  const fs::path root = draft.folder.display_root();
  if (draft.options.allow_missing) return open_first_readable(draft.inputs, files, root);
  return std::move(
      open_shards(draft.inputs, {files.front()}, root, nullptr, draft.pickles.get()).front());
}

// `one`: what open_one() gave, if it was asked for one of them.
std::vector<Shard> open_all(CheckpointDraft& draft, std::vector<ShardFile> files,
                            const std::vector<ShardName>& missing, std::optional<Shard> one) {
  if (draft.options.allow_missing) return open_with_stand_ins(draft, files, missing);
  std::vector<Shard> shards;
  if (one && one->name == files.front().name) {
    shards.push_back(std::move(*one));
    files.erase(files.begin());
  }
  std::vector<Shard> others =
      open_shards(draft.inputs, files, draft.folder.display_root(), nullptr, draft.pickles.get());
  std::move(others.begin(), others.end(), std::back_inserter(shards));
  return shards;
}

// The size of the grid of pipeline stages and tensor-parallel ranks.
uint32_t mp_world_size(const CheckpointDraft& draft, const Shard& model) {
  constexpr int64_t kMaxRanks = 1 << 16;
  const Fields fields(model, model.archive.root());
  const auto saved = fields.integer_if_any(keys::kMpWorldSize);
  if (saved && (*saved < 1 || *saved > kMaxRanks)) {
    throw CorruptError(fields.where(keys::kMpWorldSize), "is " + std::to_string(*saved));
  }
  if (saved) return static_cast<uint32_t>(*saved);
  uint32_t largest = 0;
  for (const ShardFile& shard : draft.folder.shards) {
    largest = std::max(largest, shard.name.mp_rank);
  }
  return largest + 1;
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
  }
  if (counts.empty()) throw CorruptError(where, "is empty");
  // Experts are cut over fewer ranks than what all ranks share.
  return static_cast<uint32_t>(*std::max_element(counts.begin(), counts.end()));
}

// The flat tensors of a rank, and with `states` what the optimizer keeps of them.
std::vector<Value> tensors_of(const Shard& shard, std::string_view masters_key,
                              std::string_view state_key, bool states) {
  const Fields fields = optimizer_state(shard);
  std::vector<Value> tensors;
  const auto add = [&](const Value& value) {
    if (TorchArchive::is_tensor(value) && !is_meta_tensor(value)) tensors.push_back(value);
  };
  const auto add_all = [&](const Value& mapping) {
    if (!mapping.is_mapping()) return;
    for (const auto& [key, value] : mapping.as_dict().items) add(value);
  };
  if (const auto masters = fields.get(masters_key)) {
    for (const Value& value : masters->sequence_or_empty()) add(value);
  }
  const auto optimizer = states ? fields.get(state_key) : std::nullopt;
  if (!optimizer) return tensors;
  for (const Value& group : optimizer->sequence_or_empty()) add_all(group);
  if (!optimizer->is_mapping()) return tensors;
  if (const auto state = optimizer->find("state"); state && state->is_mapping()) {
    for (const auto& [index, entry] : state->as_dict().items) add_all(entry);
  }
  return tensors;
}

// Sets facts.mesh.pp and .tp, whose product is `mp`.
void find_degrees(CheckpointDraft& draft, uint32_t mp) {
  Mesh& mesh = draft.facts.mesh;
  bool known = false;
  for (const Shard& shard : draft.model_shards) {
    const Fields fields(shard, shard.archive.root());
    const Where where = fields.where(keys::kCheckpointParallelDimensions);
    if (!fields.has(keys::kCheckpointParallelDimensions)) {
      if (known) throw InconsistentError(where, "is missing, but other files have it");
      continue;
    }
    const Fields dimensions = fields.in(keys::kCheckpointParallelDimensions);
    const int64_t pp = dimensions.integer("pp_degree");
    int64_t tp = dimensions.integer("tp_degree");
    // parallel_state_sp of Ulysses calls its sequence-parallel ranks model-parallel ones, too. They
    // share every parameter, and DeepSpeed's engine counts them as data-parallel.
    if (pp == 1 && fields.integer_if_any(keys::kMpWorldSize) == 1) tp = 1;
    if (pp < 1 || tp < 1 || pp > mp || tp > mp || pp * tp != mp) {
      throw InconsistentError(where, "says " + std::to_string(pp) + " x " + std::to_string(tp) +
                                         ", but there are " + counted(mp, "mp rank"));
    }
    if (known && (pp != mesh.pp || tp != mesh.tp)) {
      throw InconsistentError(where, "differs from that in " + draft.model_shards.front().display);
    }
    if (!known && &shard != &draft.model_shards.front()) {
      throw InconsistentError(where, "is not in " + draft.model_shards.front().display);
    }
    known = true;
    mesh.pp = static_cast<uint32_t>(pp);
    mesh.tp = static_cast<uint32_t>(tp);
  }
  if (known) return;
  // Older releases: a pipeline has a file of each layer for each tensor-parallel rank; without a
  // pipeline all is tensor parallelism.
  std::map<uint32_t, uint32_t> files_of_layer;
  for (const ShardFile& shard : draft.folder.shards) {
    if (shard.name.kind == ShardName::Kind::layer) ++files_of_layer[shard.name.layer];
  }
  uint32_t tp = files_of_layer.empty() ? mp : 1;
  for (const auto& layer : files_of_layer) tp = std::max(tp, layer.second);
  if (mp % tp != 0) {
    throw InconsistentError(
        {.file = shown_path(draft.folder.path)},
        counted(mp, "mp rank") + ", but " + counted(tp, "file") + " of one layer");
  }
  mesh.tp = tp;
  mesh.pp = mp / tp;
}

// The number of a ZeroStageEnum (deepspeed/runtime/zero/config.py) that is pickled as
// getattr(ZeroStageEnum, NAME). Python 3.11.0 to 3.11.3 did that with all enums; others write the
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

ShardValue wrapper_state(const Shard& optim) {
  return {&optim.archive, optim.archive.root().at(keys::kOptimizerStateDict)};
}

TensorSource flat_masters(const Shard& optim, const Value& tensor) {
  TensorSource masters = optim.archive.tensor(tensor).flatten();
  check_master_type(masters.dtype());
  return masters;
}

void check_master_type(DType dtype) {
  if (dtype == DType::float32 || dtype == DType::float16 || dtype == DType::bfloat16) return;
  const std::string text = "floating masters expected, not " + std::string(torch_name(dtype));
  if (!is_floating_point(dtype)) throw CorruptError({}, text);  // no engine has such
  throw UnsupportedError({}, text);
}

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

int zero_stage_of(const Shard& optim) {
  return zero_stage_of(optimizer_state(optim));
}

int zero_stage_of(const Fields& fields) {
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

void open_optim_shards(CheckpointDraft& draft) {
  const std::vector<ShardFile> files = draft.folder.of_kind(ShardName::Kind::optim_states);
  // One shard of each kind tells how many there must be. Then all missing ones can be named at
  // once, before the others are read.
  Shard first = open_one(draft, files);
  const uint32_t dp = degree_of(first);
  uint32_t mp = 1;
  std::vector<ShardFile> models = draft.folder.of_kind(ShardName::Kind::model_states);
  if (models.empty()) models = draft.folder.of_kind(ShardName::Kind::zero_model_states);
  if (!models.empty()) {
    draft.first_model = open_one(draft, models);
    mp = mp_world_size(draft, *draft.first_model);
  }
  draft.mp_ranks = mp;
  draft.optim_shards = open_all(draft, files, check_ranks(files, files.front().name, mp, dp, draft),
                                std::move(first));
  for (const Shard& shard : draft.optim_shards) {
    if (degree_of(shard) == dp) continue;
    throw InconsistentError(shard.where(keys::kPartitionCount),
                            "is " + std::to_string(degree_of(shard)) + ", but " +
                                std::to_string(dp) + " in " + draft.optim_shards.front().display);
  }
  draft.facts.mesh.dp = dp;
}

void open_model_shards(CheckpointDraft& draft, ShardName::Kind kind) {
  const std::vector<ShardFile> files = draft.folder.of_kind(kind);
  const bool every_rank = kind == ShardName::Kind::zero_model_states;
  const uint32_t dp = every_rank ? draft.facts.mesh.dp : 1;
  uint32_t mp = 1;
  if (!draft.optim_shards.empty()) {
    mp = draft.mp_ranks;
  } else if (!files.empty()) {
    if (!draft.first_model) draft.first_model = open_one(draft, files);
    mp = mp_world_size(draft, *draft.first_model);
  }
  draft.model_shards = open_all(draft, files, check_ranks(files, {.kind = kind}, mp, dp, draft),
                                std::exchange(draft.first_model, {}));
  find_degrees(draft, mp);
  const auto saved_config = [](const std::vector<Shard>& shards) {
    return shards.empty() ? Value() : shards.front().archive.root().find_or_none(keys::kDsConfig);
  };
  draft.run_config = run_config(saved_config(draft.model_shards), saved_config(draft.optim_shards));
}

std::vector<const Shard*> optim_shards_of(const CheckpointDraft& draft, uint32_t mp_rank) {
  std::vector<const Shard*> shards;
  for (const Shard& shard : draft.optim_shards) {
    if (shard.name.mp_rank == mp_rank) shards.push_back(&shard);
  }
  return shards;
}

void look_up_tensors(const CheckpointDraft& draft, std::string_view masters_key,
                     std::string_view state_key, bool states) {
  if (far_requests() == 0) return;
  const auto quietly = [](const auto& look) {
    try {
      look();
    } catch (const Error&) {
    }
  };
  tbb::parallel_for(size_t{0}, draft.optim_shards.size(), [&](size_t i) {
    const Shard& shard = draft.optim_shards[i];
    if (shard.lost) return;
    quietly([&] {
      const std::vector<Value> tensors = tensors_of(shard, masters_key, state_key, states);
      tbb::parallel_for(size_t{0}, tensors.size(),
                        [&](size_t t) { quietly([&] { shard.archive.tensor(tensors[t]); }); });
    });
  });
}

}  // namespace dsckpt
