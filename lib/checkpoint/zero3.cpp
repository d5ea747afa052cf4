// ZeRO stage 3: every parameter is cut over all ranks by itself, and each rank strings its pieces
// together into sub-groups. Layout: LAYOUTS.md; source: deepspeed/runtime/zero/stage3.py,
// partition_parameters.py; zero_to_fp32.py _zero3_merge_trainable_params.

#include <algorithm>
#include <map>
#include <memory>
#include <numeric>
#include <optional>
#include <string>
#include <utility>

#include "base/bytes.h"
#include "base/keyed_hash.h"
#include "base/text.h"
#include "checkpoint/assemble.h"
#include "checkpoint/experts.h"
#include "checkpoint/flat_states.h"
#include "checkpoint/layout.h"
#include "checkpoint/model_states.h"
#include "checkpoint/offloaded.h"
#include "checkpoint/optim_states.h"
#include "checkpoint/zero_world.h"
#include "deepspeed/keys.h"
#include "deepspeed/run_config.h"
#include "deepspeed/zero_layout.h"
#include "dsckpt/error.h"

namespace dsckpt {
namespace fs = std::filesystem;
namespace {

using pickle::Value;

std::string group_member(size_t group) {
  return std::string(keys::kFp32FlatGroups) + "[" + std::to_string(group) + "]";
}

// How one sub-group of one rank is cut: over `count` ranks; this one has piece `rank`.
struct Share {
  uint64_t count;
  uint64_t rank;
};

// ds_zero_partition_groups: experts are cut over the ranks that have the same ones. Empty if all
// sub-groups are cut over all ranks. autoep_zero3_metadata.py.
std::vector<Share> shares_of(const Shard& optim) {
  const Fields state = optimizer_state(optim);
  std::vector<Share> shares;
  const auto groups = state.sequence(keys::kZeroPartitionGroups);
  for (size_t i = 0; i < groups.size(); ++i) {
    const Fields group(
        optim, groups[i],
        state.where(keys::kZeroPartitionGroups).member + "[" + std::to_string(i) + "]");
    const int64_t count = group.integer("partition_count");
    const int64_t rank = group.integer("partition_rank");
    if (group.integer("sub_group") != static_cast<int64_t>(i) || count < 1 || rank < 0 ||
        rank >= count) {
      throw CorruptError(group.where(), "does not describe sub-group " + std::to_string(i));
    }
    shares.push_back({static_cast<uint64_t>(count), static_cast<uint64_t>(rank)});
  }
  return shares;
}

// The rank among those that share the experts between them: its own word, for which file names say
// nothing.
uint32_t expert_parallel_rank(const ModelStates& model) {
  const std::string_view key = autoep_layers_key(model.shard().archive.root());
  const auto layers = model.fields.sequence(key);
  if (layers.empty()) {
    throw InconsistentError(model.fields.where(key),
                            "is missing, but sub-groups are cut over some of the ranks only");
  }
  const Fields fields(model.shard(), layers.front(), std::string(key));
  const int64_t rank = fields.integer("ep_rank");
  if (rank < 0 || rank > 1 << 20) {
    throw CorruptError(fields.where("ep_rank"), "is " + std::to_string(rank));
  }
  return static_cast<uint32_t>(rank);
}

uint64_t numel_of(const Shape& shape) {
  return static_cast<uint64_t>(numel(shape));
}

class Zero3WorldReader {
 public:
  Zero3WorldReader(CheckpointDraft& draft, const std::vector<RankModel>& models,
                   const std::vector<const Shard*>& optim)
      : draft_(draft),
        models_(models),
        optim_(optim),
        groups_(models.front().states->param_shapes) {
    for (const Shard* shard : optim) shares_.push_back(shares_of(*shard));
    refuse_lost_experts();
  }

  std::vector<OwnedParam> read() {
    check_model_shards();
    open_swap_files();
    std::vector<uint64_t> borders;
    for (size_t rank = 0; rank < optim_.size(); ++rank) {
      flat_.push_back(flat_groups(rank));
      const std::vector<uint64_t> ends = account(rank);
      const Where where = optim_[rank]->where(keys::kFp32FlatGroups);
      if (rank == 0) borders = ends;
      if (ends.size() != borders.size() || (shares_.front().empty() && ends != borders)) {
        throw InconsistentError(where, "is cut otherwise than in " + optim_.front()->display);
      }
      if (flat_[rank].front().dtype() != flat_.front().front().dtype()) {
        throw InconsistentError(where, "is not of the type it has in " + optim_.front()->display);
      }
    }
    if (groups_.size() == borders.size()) {
      for (size_t g = 0; g < groups_.size(); ++g) read_sub_group(g);
    } else {
      // Parameters lie across sub-groups: all of them are one.
      NamedShapes all;
      for (const NamedShapes& group : groups_) all.insert(all.end(), group.begin(), group.end());
      std::vector<size_t> parts(borders.size());
      std::iota(parts.begin(), parts.end(), size_t{0});
      add_params(parts, all, all_ranks(), 0, 1);
    }
    return std::move(params_);
  }

 private:
  // Only a rank's own files say which experts it has.
  void refuse_lost_experts() const {
    if (shares_.front().empty()) return;
    for (size_t rank = 0; rank < optim_.size(); ++rank) {
      for (const Shard* shard : {optim_[rank], models_[rank].shard}) {
        if (!shard->lost) continue;
        throw UnsupportedError(shard->where(),
                               "is lost, and no other file tells which experts the rank had");
      }
    }
  }

  std::vector<size_t> all_ranks() const {
    std::vector<size_t> ranks(optim_.size());
    std::iota(ranks.begin(), ranks.end(), size_t{0});
    return ranks;
  }

  // Every rank writes a model file of its own; all say the same but for their fragments and their
  // own experts.
  void check_model_shards() const {
    const ModelStates& reference = *models_.front().states;
    for (const NamedShapes& group : reference.param_shapes) {
      for (const auto& [name, shape] : group) {
        const Where where = reference.fields.where(keys::kParamShapes);
        in_context({.file = where.file, .member = where.member, .tensor = name},
                   [&sizes = shape] { numel(sizes); });
      }
    }
    for (size_t rank = 0; rank < models_.size(); ++rank) {
      const ModelStates& model = *models_[rank].states;
      if (shares_[rank].size() != shares_.front().size() ||
          model.param_shapes.size() != groups_.size() ||
          (!shares_[rank].empty() && shares_[rank].size() != groups_.size())) {
        throw_other_save(model, reference, keys::kParamShapes);
      }
      for (size_t g = 0; g < groups_.size(); ++g) {
        if (model.param_shapes[g] != groups_[g] && share(rank, g).count == optim_.size()) {
          throw_other_save(model, reference, keys::kParamShapes);
        }
        if (share(rank, g).count != share(0, g).count) {
          throw InconsistentError(optim_[rank]->where(keys::kZeroPartitionGroups),
                                  "differs from that in " + optim_.front()->display);
        }
      }
      check_same_save(model, reference);
      const auto dp = model.fields.integer_if_any(keys::kDpWorldSize);
      const Value config = model.fields.get(keys::kDsConfig).value_or(Value());
      const auto files = static_cast<int64_t>(optim_.size());
      if (dp && *dp != files && saving_ranks(config, *dp) != files) {
        throw InconsistentError(model.fields.where(keys::kDpWorldSize),
                                "is " + std::to_string(*dp) + ", the optimizer files are of " +
                                    counted(optim_.size(), "rank"));
      }
    }
  }

  // The parts of large sub-groups that an optimizer on NVMe keeps outside of the ranks' files.
  void open_swap_files() {
    std::vector<std::vector<SubGroupSize>> sizes;
    for (size_t rank = 0; rank < optim_.size(); ++rank) {
      sizes.push_back(sub_group_sizes(*models_[rank].states, *optim_[rank], optim_.size()));
    }
    const OffloadConfig& offload = draft_.run_config.offload;
    const auto tensors = swapped_tensors(optim_, sizes, draft_.mp_ranks, offload, draft_.notes);
    swapped_ = SwapFiles(draft_.inputs, optim_, tensors, offload, draft_.options.optimizer_states);
    draft_.files.swap.insert(draft_.files.swap.end(), swapped_.files().begin(),
                             swapped_.files().end());
    for (const auto& of_rank : tensors) {
      for (const SwappedTensor& tensor : of_rank) draft_.swap_paths.insert(tensor.path);
    }
  }

  Share share(size_t rank, size_t group) const {
    return shares_[rank].empty() ? Share{optim_.size(), rank} : shares_[rank][group];
  }

  // The sub-group of all ranks, or, if it is cut over some of them, of each set of ranks that share
  // it.
  void read_sub_group(size_t g) {
    const uint64_t count = share(0, g).count;
    if (count == optim_.size()) {
      add_params({g}, groups_[g], in_order(g, all_ranks()), 0, 1);
      return;
    }
    std::map<uint32_t, std::vector<size_t>> sets;
    for (size_t rank = 0; rank < optim_.size(); ++rank) {
      sets[expert_parallel_rank(*models_[rank].states)].push_back(rank);
    }
    const auto ep_size = static_cast<uint32_t>(sets.size());
    for (auto& [ep_rank, ranks] : sets) {
      const ModelStates& model = *models_[ranks.front()].states;
      for (const size_t rank : ranks) {
        const ModelStates& other = *models_[rank].states;
        if (&other == &model || other.param_shapes[g] == model.param_shapes[g]) continue;
        throw InconsistentError(
            other.fields.where(keys::kParamShapes),
            "differs from that in " + model.shard().display + ", which has the same experts");
      }
      add_params({g}, model.param_shapes[g], in_order(g, ranks), ep_rank, ep_size);
    }
  }

  // `ranks` by the pieces they have of sub-group `g`.
  std::vector<size_t> in_order(size_t g, const std::vector<size_t>& ranks) const {
    const uint64_t count = share(ranks.front(), g).count;
    constexpr size_t kNone = ~size_t{0};
    std::vector<size_t> ordered(ranks.size(), kNone);
    for (const size_t rank : ranks) {
      const uint64_t piece = share(rank, g).rank;
      if (count != ranks.size() || piece >= ordered.size() || ordered[piece] != kNone) {
        throw InconsistentError(optim_[rank]->where(keys::kZeroPartitionGroups),
                                "does not fit those of the other " +
                                    counted(ranks.size() - 1, "rank") + " of sub-group " +
                                    std::to_string(g));
      }
      ordered[piece] = rank;
    }
    return ordered;
  }

  // The flat tensors of ranks, or of what they keep of one state.
  using Pieces = std::shared_ptr<const std::vector<TensorSource>>;
  static Pieces shared(std::vector<TensorSource> flat) {
    return std::make_shared<const std::vector<TensorSource>>(std::move(flat));
  }

  // The parameters `shapes` that `ranks` share, whose pieces lie end to end in the sub-groups
  // `groups` of each rank.
  void add_params(const std::vector<size_t>& groups, const NamedShapes& shapes,
                  const std::vector<size_t>& ranks, uint32_t ep_rank, uint32_t ep_size) {
    std::vector<TensorSource> flat;
    for (const size_t rank : ranks) {
      std::vector<TensorSource> parts;
      for (const size_t g : groups) parts.push_back(flat_[rank][g]);
      flat.push_back(in_context(optim_[rank]->where(keys::kFp32FlatGroups),
                                [&] { return TensorSource::cat(0, std::move(parts)); }));
    }
    const Pieces masters = shared(std::move(flat));
    const Shard& first = *optim_[ranks.front()];
    const bool requires_grad =
        first.archive.info(optimizer_state(first).sequence(keys::kFp32FlatGroups)[groups.front()])
            .requires_grad;
    FlatStates all;
    if (draft_.options.optimizer_states) all = states_of(groups, ranks);
    std::vector<Pieces> states;
    for (FlatStates::State& state : all.states) states.push_back(shared(std::move(state.pieces)));

    int64_t at = 0;
    for (const auto& item : shapes) {
      const Shape& shape = item.second;
      in_context({.file = models_.front().shard->display, .tensor = item.first}, [&] {
        OwnedParam param{.name = item.first,
                         .shape = shape,
                         .master = gathered(masters, at, shape),
                         .requires_grad = requires_grad,
                         .states = {},
                         .step = all.step,
                         .others = all.others,
                         .ep_rank = ep_rank,
                         .ep_size = ep_size};
        for (size_t i = 0; i < states.size(); ++i) {
          param.states.push_back({all.states[i].key, gathered(states[i], at, shape)});
        }
        params_.push_back(std::move(param));
      });
      at += static_cast<int64_t>(piece_of(numel_of(shape), ranks.size()));
    }
  }

  const FlatOptimizer& optimizer_of(size_t rank) {
    const auto found = optimizers_.find(rank);
    if (found != optimizers_.end()) return found->second;
    return optimizers_.try_emplace(rank, optimizer_state(*optim_[rank]), keys::kOptimizerStateDict)
        .first->second;
  }

  // The optimizer's states of sub-groups `groups` end to end, as `masters` are.
  FlatStates states_of(const std::vector<size_t>& groups, const std::vector<size_t>& ranks) {
    std::vector<const Shard*> shards;
    std::vector<const FlatOptimizer*> optimizers;
    for (const size_t rank : ranks) {
      shards.push_back(optim_[rank]);
      optimizers.push_back(&optimizer_of(rank));
    }
    FlatStates all;
    std::vector<std::vector<std::vector<TensorSource>>> parts;  // by state and rank, of each group
    for (const size_t g : groups) {
      FlatStates states = flat_states(optimizers, g);
      for (FlatStates::State& state : states.states) {
        for (size_t i = 0; i < ranks.size(); ++i) {
          const std::string member = FlatStates::member(keys::kOptimizerStateDict, g, state.key);
          if (const TensorSource* swapped = swapped_.find(ranks[i], member)) {
            state.pieces[i] = *swapped;
          }
          if (state.pieces[i].numel() == flat_[ranks[i]][g].numel()) continue;
          throw InconsistentError(shards[i]->where(member),
                                  "has " + counted(state.pieces[i].numel(), "element") +
                                      ", the sub-group has " +
                                      std::to_string(flat_[ranks[i]][g].numel()));
        }
      }
      if (g == groups.front()) {
        all = std::move(states);
        for (const FlatStates::State& state : all.states) {
          parts.emplace_back();
          for (const TensorSource& piece : state.pieces) parts.back().push_back({piece});
        }
        continue;
      }
      const size_t count = all.states.size();
      for (size_t k = 0; k < std::max(count, states.states.size()); ++k) {
        if (k >= count || k >= states.states.size() || all.states[k].key != states.states[k].key) {
          throw InconsistentError(shards.front()->where(keys::kOptimizerStateDict),
                                  "has other states for sub-group " + std::to_string(g) +
                                      ", and parameters lie across sub-groups");
        }
        for (size_t i = 0; i < ranks.size(); ++i) {
          parts[k][i].push_back(states.states[k].pieces[i]);
        }
      }
    }
    for (size_t k = 0; k < parts.size(); ++k) {
      for (size_t i = 0; i < ranks.size(); ++i) {
        if (parts[k][i].size() == 1) continue;
        all.states[k].pieces[i] = TensorSource::cat(0, std::move(parts[k][i]));
      }
    }
    return all;
  }

  // The parameter of `shape` whose pieces lie at `at` in `flat`, one tensor a rank.
  static TensorSource gathered(const Pieces& flat, int64_t at, const Shape& shape) {
    const auto piece = static_cast<int64_t>(piece_of(numel_of(shape), flat->size()));
    return TensorSource::cat_narrowed(flat, at, piece).narrow(0, 0, numel(shape)).view(shape);
  }

  std::vector<TensorSource> flat_groups(size_t rank) const {
    const Shard& shard = *optim_[rank];
    const Fields state = optimizer_state(shard);
    const auto tensors = state.sequence(keys::kFp32FlatGroups);
    if (tensors.empty()) {
      throw CorruptError(state.where(keys::kFp32FlatGroups), "is missing or empty");
    }
    std::vector<TensorSource> parts;
    for (size_t g = 0; g < tensors.size(); ++g) {
      const TensorSource* swapped = swapped_.find(rank, group_member(g));
      in_context(shard.where(group_member(g)), [&] {
        parts.push_back(swapped != nullptr ? *swapped : flat_masters(shard, tensors[g]));
      });
    }
    return parts;
  }

  // Where each sub-group of `rank` ends. Throws unless the parameters' pieces need exactly the
  // elements the rank has. DeepSpeed writes one sub-group for each entry of param_shapes; if the
  // sums agree but not the borders, parameters lie across them.
  std::vector<uint64_t> account(size_t rank) const {
    const Shard& shard = *optim_[rank];
    const std::vector<NamedShapes>& groups = models_[rank].states->param_shapes;
    std::vector<uint64_t> ends;
    uint64_t available = 0;
    for (const TensorSource& part : flat_[rank]) {
      available = checked_add(available, static_cast<uint64_t>(part.numel()));
      ends.push_back(available);
    }
    if (!shares_[rank].empty() && groups.size() != ends.size()) {
      throw InconsistentError(shard.where(keys::kFp32FlatGroups),
                              "has " + counted(ends.size(), "sub-group") + ", param_shapes has " +
                                  std::to_string(groups.size()));
    }
    const bool one_to_one = groups.size() == ends.size();
    uint64_t needed = 0;
    // The first place where borders disagree, for the message should the sums disagree too.
    std::optional<Where> place;
    for (size_t g = 0; g < groups.size(); ++g) {
      for (const auto& [name, shape] : groups[g]) {
        needed = checked_add(needed, piece_of(numel_of(shape), share(rank, g).count));
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
    if (needed == available && (!place || shares_[rank].empty())) return ends;
    throw InconsistentError(place.value_or(shard.where(keys::kFp32FlatGroups)),
                            "the rank has " + counted(available, "element") +
                                ", its pieces of the parameters need " + std::to_string(needed));
  }

  CheckpointDraft& draft_;
  const std::vector<RankModel>& models_;
  const std::vector<const Shard*>& optim_;
  const std::vector<NamedShapes>& groups_;
  SwapFiles swapped_;
  std::vector<std::vector<Share>> shares_;       // by rank, then sub-group
  std::vector<std::vector<TensorSource>> flat_;  // by rank, then sub-group
  std::map<size_t, FlatOptimizer> optimizers_;   // by rank, of those that were asked
  std::vector<OwnedParam> params_;
};

// Swap files that no tensor refers to are left of another run, or of other ranks.
void note_unreferenced(CheckpointDraft& draft) {
  const fs::path folder = offload_folder(draft.folder.path);
  const std::vector<fs::path> others = unreferenced_swap_files(folder, draft.swap_paths);
  if (others.empty()) return;
  draft.notes.push_back(others.front().lexically_relative(draft.folder.path).string() +
                        (others.size() == 1 ? " is a file"
                                            : " and " + counted(others.size() - 1, "more file") +
                                                  " of offloaded_tensors are some") +
                        " that no tensor refers to; left out");
}

// The groups follow each other in the sub-groups.
void find_expert_groups(std::vector<ParamGroup>& groups, const std::vector<Share>& shares,
                        size_t dp) {
  if (shares.empty()) return;
  size_t next = 0;
  for (ParamGroup& group : groups) {
    const auto indices = group.settings.value.find_or_none("params").sequence_or_empty();
    if (indices.empty()) continue;
    group.ep_size = static_cast<uint32_t>(dp / shares.at(next).count);
    next += indices.size();
  }
}

// Elements of a rank's sub-groups.
std::vector<uint64_t> sub_group_numels(const Shard& optim) {
  std::vector<uint64_t> numels;
  for (const Value& flat : optimizer_state(optim).sequence(keys::kFp32FlatGroups)) {
    numels.push_back(static_cast<uint64_t>(numel(optim.archive.info(flat).shape)));
  }
  return numels;
}

bool probe_zero3(CheckpointDraft& draft) {
  return draft.folder.has(ShardName::Kind::zero_model_states);
}

void read_zero3(CheckpointDraft& draft) {
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
  open_model_shards(draft, ShardName::Kind::zero_model_states);
  draft.facts.zero_stage = 3;
  draft.facts.optimizer_wrapper = EngineWrapper::zero3;
  draft.facts.nvme_optimizer = draft.run_config.offload.nvme;

  look_up_tensors(draft, keys::kFp32FlatGroups, keys::kOptimizerStateDict, true);
  check_steps(draft, keys::kOptimizerStateDict);
  RankModels all(draft.model_shards);
  const std::vector<RankModel>& models = all.ranks();
  for (ModelStates& each : all.distinct()) {
    const Shard& optim = *optim_shards_of(draft, each.shard().name.mp_rank).front();
    each.take_param_shapes(optim);
    in_context(optim.where(),
               [&] { each.split_param_shapes(sub_group_numels(optim), draft.facts.mesh.dp); });
    each.find_tied_placeholders();
    if (each.shard().name.dp_rank == 0) add_router_aliases(each, draft.inputs);
  }
  std::vector<World> worlds;
  const size_t dp = draft.facts.mesh.dp;
  for (size_t begin = 0; begin < models.size(); begin += dp) {
    const auto first_rank = models.begin() + static_cast<std::ptrdiff_t>(begin);
    const std::vector<RankModel> ranks(first_rank, first_rank + static_cast<std::ptrdiff_t>(dp));
    const std::vector<const Shard*> optim =
        optim_shards_of(draft, ranks.front().shard->name.mp_rank);
    Zero3WorldReader reader(draft, ranks, optim);
    // Buffers are whole in every rank's file.
    const auto readable = std::find_if(ranks.begin(), ranks.end(),
                                       [](const RankModel& model) { return !model.shard->lost; });
    const RankModel& of_buffers = readable == ranks.end() ? ranks.front() : *readable;
    World& world = worlds.emplace_back(World{of_buffers.states, reader.read(), cut_frozen(ranks)});
    const Shard& of_world = *optim.front();
    world.facts = draft.facts;
    world.wrapper_state = wrapper_state(of_world);
    if (!draft.options.optimizer_states) continue;
    world.groups = sub_group_param_groups(*ranks.front().states, optimizer_state(of_world));
    find_expert_groups(world.groups, shares_of(of_world), dp);
  }
  draft.wrapper_state = wrapper_state(first);
  note_unreferenced(draft);
  const ModelStates& first_states = *models.front().states;
  keep_worlds(draft, all.distinct(), worlds);
  assemble(draft, worlds);
  find_valueless(worlds.front(), draft);
  first_states.note_not_tensors(draft);
}

}  // namespace

std::vector<SubGroupSize> sub_group_sizes(const ModelStates& model, const Shard& optim,
                                          size_t ranks) {
  const std::vector<Share> shares = shares_of(optim);
  std::vector<SubGroupSize> sizes;
  for (size_t g = 0; g < model.param_shapes.size(); ++g) {
    SubGroupSize size{.params = model.param_shapes[g].size()};
    for (const auto& entry : model.param_shapes[g]) {
      const uint64_t count = g < shares.size() ? shares[g].count : ranks;
      size.numel = checked_add(size.numel, piece_of(numel_of(entry.second), count));
    }
    sizes.push_back(size);
  }
  return sizes;
}

std::vector<ParamGroup> sub_group_param_groups(const ModelStates& model, const Fields& wrapper) {
  const auto all = wrapper.get(keys::kOptimizerStateDict)
                       .value_or(Value())
                       .find_or_none(keys::kParamGroups)
                       .sequence_or_empty();
  std::vector<ParamGroup> groups;
  int64_t next = 0;
  for (const Value& settings : all) {
    ParamGroup group{.params = {}, .settings = {&wrapper.shard().archive, settings}};
    for (const Value& index : settings.find_or_none("params").sequence_or_empty()) {
      const auto at = static_cast<size_t>(next);
      if (!index.is(pickle::Kind::integer) || index.as_int() != next++) return {};
      if (at >= model.param_shapes.size()) return {};
      for (const auto& entry : model.param_shapes[at]) group.params.push_back(entry.first);
    }
    groups.push_back(std::move(group));
  }
  if (static_cast<size_t>(next) != model.param_shapes.size()) return {};
  return groups;
}

void find_valueless(const World& world, CheckpointDraft& draft) {
  KeyedSet<std::string_view> found;
  for (const auto& entry : world.frozen) found.insert(entry.first);
  std::set<std::string_view> quantized;
  for (const auto& entry : world.model->frozen_param_shapes) quantized.insert(entry.first);
  for (const auto& entry : world.model->rest_of_module()) {
    if (found.contains(entry.first)) continue;
    draft.valueless.push_back(entry.first);
    draft.notes.push_back("'" + entry.first +
                          (quantized.contains(entry.first)
                               ? "' is quantized, and its scales are in no file; left out"
                               : "' is a parameter of the model, but no file holds its "
                                 "values; left out"));
  }
}

const Layout kZero3{"zero-3", probe_zero3, read_zero3};

}  // namespace dsckpt
