// ZeRO stage 3: every parameter is cut over all ranks by itself, and each rank strings its pieces
// together into sub-groups. Layout: LAYOUTS.md; source: deepspeed/runtime/zero/stage3.py,
// partition_parameters.py; zero_to_fp32.py _zero3_merge_trainable_params.

#include <algorithm>
#include <optional>
#include <string>
#include <unordered_set>

#include "base/bytes.h"
#include "base/error.h"
#include "checkpoint/keys.h"
#include "checkpoint/layout.h"
#include "checkpoint/model_states.h"
#include "checkpoint/optim_states.h"

namespace dsckpt {
namespace {

using pickle::Value;

std::string group_member(size_t group) {
  return std::string(keys::kFp32FlatGroups) + "[" + std::to_string(group) + "]";
}

class Reader {
 public:
  explicit Reader(CheckpointDraft& draft) : draft_(draft), ranks_(draft.optim_shards.size()) {
    models_.reserve(draft.model_shards.size());
    for (const Shard& shard : draft.model_shards) models_.emplace_back(shard);
  }

  void read() {
    draft_.facts.zero_stage = 3;
    draft_.facts.optimizer_wrapper = "DeepSpeedZeroOptimizer_Stage3";
    check_model_shards();
    check_same_step(draft_, keys::kOptimizerStateDict);
    note_other_step(draft_, keys::kOptimizerStateDict);

    const ModelStates& model = models_.front();
    ParamList params;
    params.add_buffers(model);
    add_frozen(params);
    add_trainable(params);
    params.add_aliases(model, draft_.notes);
    note_lost(model, params);
    model.note_not_tensors(draft_.notes);
    draft_.params = params.take();
  }

 private:
  // Old releases lose frozen and tied parameters at stage 3: only placeholders of them are left.
  void note_lost(const ModelStates& model, const ParamList& params) {
    const std::unordered_set<std::string> aliases = model.aliases();
    for (const auto& entry : model.module) {
      if (params.has(entry.first) || aliases.contains(entry.first)) continue;
      draft_.notes.push_back(
          "'" + entry.first +
          "' is a parameter of the model, but no file holds its values; left out");
    }
  }

  // Every rank writes a model file of its own; all say the same but for their fragments.
  void check_model_shards() const {
    const ModelStates& reference = models_.front();
    for (const NamedShapes& group : reference.param_shapes) {
      for (const auto& [name, shape] : group) {
        const Where where = reference.fields.where(keys::kParamShapes);
        in_context({.file = where.file, .member = where.member, .tensor = name},
                   [&] { numel(shape); });
      }
    }
    for (const ModelStates& model : models_) {
      const auto differ = [&](std::string_view key) {
        throw InconsistentError(model.fields.where(key),
                                "differs from that in " + reference.shard().display +
                                    ": the ranks were not saved at the same step");
      };
      if (model.param_shapes != reference.param_shapes) differ(keys::kParamShapes);
      if (model.frozen_param_shapes != reference.frozen_param_shapes) {
        differ(keys::kFrozenParamShapes);
      }
      for (const std::string_view key :
           {keys::kGlobalSteps, keys::kSkippedSteps, keys::kGlobalSamples, keys::kDsVersion}) {
        const auto a = model.fields.get(key);
        const auto b = reference.fields.get(key);
        if (a.has_value() != b.has_value() || (a && !same_plain_data(*a, *b))) differ(key);
      }
      const auto dp = model.fields.integer_if_any(keys::kDpWorldSize);
      if (dp && *dp != static_cast<int64_t>(ranks_)) {
        throw InconsistentError(model.fields.where(keys::kDpWorldSize),
                                "is " + std::to_string(*dp) + ", the optimizer files are of " +
                                    std::to_string(ranks_) + " ranks");
      }
    }
  }

  uint64_t piece_of(uint64_t numel) const { return div_ceil(numel, ranks_); }

  // The parameter whose first `numel` elements are `pieces`, one a rank, laid end to end.
  static TensorSource gathered(std::vector<TensorSource> pieces, const Shape& shape) {
    return TensorSource::cat(0, std::move(pieces)).narrow(0, 0, numel(shape)).view(shape);
  }

  void add_frozen(ParamList& params) const {
    const ModelStates& reference = models_.front();
    if (!reference.frozen_param_fragments) return;
    for (const auto& [name, shape] : reference.frozen_param_shapes) {
      // Frozen since the optimizer was made, which still owns it: then its master counts.
      if (reference.is_trainable(name)) continue;
      const uint64_t piece = piece_of(static_cast<uint64_t>(numel(shape)));
      std::vector<TensorSource> pieces;
      for (const ModelStates& model : models_) {
        const Where where = model.fields.where(keys::kFrozenParamFragments);
        in_context({.file = where.file, .member = where.member, .tensor = name}, [&] {
          const Value fragments = model.fields[keys::kFrozenParamFragments];
          const TensorSource fragment = model.shard().archive.tensor(fragments.at(name)).flatten();
          if (static_cast<uint64_t>(fragment.numel()) != piece) {
            throw InconsistentError({}, "has " + std::to_string(fragment.numel()) +
                                            " elements, a rank's piece is " +
                                            std::to_string(piece));
          }
          pieces.push_back(fragment);
        });
      }
      params.add(name, ParamKind::frozen, gathered(std::move(pieces), shape));
    }
  }

  void add_trainable(ParamList& params) const {
    const std::vector<NamedShapes>& groups = models_.front().param_shapes;
    std::vector<TensorSource> flat;
    std::vector<uint64_t> borders;
    for (const Shard& shard : draft_.optim_shards) {
      std::vector<uint64_t> ends;
      flat.push_back(flat_of(shard, groups, ends));
      if (borders.empty()) borders = ends;
      if (ends != borders) {
        throw InconsistentError(shard.where(keys::kFp32FlatGroups),
                                "is cut otherwise than in " + draft_.optim_shards.front().display);
      }
      if (flat.back().dtype() != flat.front().dtype()) {
        throw InconsistentError(
            shard.where(keys::kFp32FlatGroups),
            "is not of the type it has in " + draft_.optim_shards.front().display);
      }
    }

    int64_t at = 0;
    for (const NamedShapes& group : groups) {
      for (const auto& [name, shape] : group) {
        const auto piece = static_cast<int64_t>(piece_of(static_cast<uint64_t>(numel(shape))));
        std::vector<TensorSource> pieces;
        for (const TensorSource& rank : flat) pieces.push_back(rank.narrow(0, at, piece));
        in_context({.file = models_.front().shard().display, .tensor = name}, [&] {
          params.add(name, ParamKind::trainable, gathered(std::move(pieces), shape));
        });
        at += piece;
      }
    }
  }

  // One rank's sub-groups laid end to end, checked to hold the pieces of all parameters and nothing
  // else; `ends` becomes where each sub-group ends.
  TensorSource flat_of(const Shard& shard, const std::vector<NamedShapes>& groups,
                       std::vector<uint64_t>& ends) const {
    const Fields state = optimizer_state(shard);
    if (state.has(keys::kZeroPartitionGroups)) {
      throw UnsupportedError(state.where(keys::kZeroPartitionGroups),
                             "expert parameters with partition groups of their own");
    }
    const auto tensors = state.sequence(keys::kFp32FlatGroups);
    if (tensors.empty())
      throw CorruptError(state.where(keys::kFp32FlatGroups), "is missing or empty");
    std::vector<TensorSource> parts;
    uint64_t available = 0;
    for (size_t g = 0; g < tensors.size(); ++g) {
      in_context(shard.where(group_member(g)),
                 [&] { parts.push_back(flat_masters(shard, tensors[g])); });
      available = checked_add(available, static_cast<uint64_t>(parts.back().numel()));
      ends.push_back(available);
    }
    account(shard, groups, ends);
    return in_context(shard.where(keys::kFp32FlatGroups),
                      [&] { return TensorSource::cat(0, std::move(parts)); });
  }

  // Throws unless the parameters' pieces need exactly the elements the rank has. `ends`: where each
  // of the rank's sub-groups ends. DeepSpeed writes one sub-group for each entry of `groups`; if
  // the sums agree but not the borders, parameters lie across them.
  void account(const Shard& shard, const std::vector<NamedShapes>& groups,
               const std::vector<uint64_t>& ends) const {
    const bool one_to_one = groups.size() == ends.size();
    const uint64_t available = ends.back();
    uint64_t needed = 0;
    // The first place where borders disagree, for the message should the sums disagree too.
    std::optional<Where> place;
    for (size_t g = 0; g < groups.size(); ++g) {
      for (const auto& [name, shape] : groups[g]) {
        needed = checked_add(needed, piece_of(static_cast<uint64_t>(numel(shape))));
        const uint64_t limit = one_to_one ? ends[g] : available;
        if (needed > limit && !place) {
          place = Where{shard.display, group_member(one_to_one ? g : ends.size() - 1), name, limit};
        }
      }
      if (!place && needed < (one_to_one ? ends[g] : g + 1 == groups.size() ? available : needed)) {
        const std::string last = groups[g].empty() ? "" : groups[g].back().first;
        place = Where{shard.display, group_member(one_to_one ? g : ends.size() - 1), last, needed};
      }
    }
    if (needed == available) return;
    throw InconsistentError(place.value_or(shard.where(keys::kFp32FlatGroups)),
                            "the rank has " + std::to_string(available) +
                                " elements, its pieces of the parameters need " +
                                std::to_string(needed));
  }

  CheckpointDraft& draft_;
  uint64_t ranks_;
  std::vector<ModelStates> models_;
};

bool probe(CheckpointDraft& draft) {
  return draft.folder.has(ShardName::Kind::zero_model_states);
}

void read(CheckpointDraft& draft) {
  if (!draft.folder.has(ShardName::Kind::optim_states)) {
    throw InconsistentError({.file = draft.folder.path.string()},
                            "all zero_pp_rank_*_optim_states.pt files are missing");
  }
  open_optim_shards(draft);
  const Shard& first = draft.optim_shards.front();
  if (zero_stage_of(first) != 3) {
    throw InconsistentError(first.where(keys::kZeroStage),
                            "is not 3, but there are model files of single ranks");
  }
  open_zero_model_shards(draft, draft.facts.mesh.dp);
  Reader(draft).read();
}

}  // namespace

const Layout kZero3{"zero-3", probe, read};

}  // namespace dsckpt
